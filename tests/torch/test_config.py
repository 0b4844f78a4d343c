import tempfile
from pathlib import Path

import platformdirs
import pytest

from aitune.exceptions import AITuneEnvironmentError, AITuneUserInputError
from aitune.torch.config import Config, aitune_cache_dir


def test_the_environment_names_the_cache_folder_at_each_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = Config()
    monkeypatch.setenv("AITUNE_CACHE_DIR", str(tmp_path))
    assert aitune_cache_dir() == config.resolve_cache_dir() == tmp_path
    monkeypatch.delenv("AITUNE_CACHE_DIR")
    assert config.resolve_cache_dir() == Path(platformdirs.user_cache_dir("aitune"))


def test_the_setting_wins_over_the_environment_and_may_be_a_string(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AITUNE_CACHE_DIR", str(tmp_path / "environment"))
    config = Config()
    config.cache_dir = str(tmp_path / "setting")  # type: ignore[assignment]
    assert config.resolve_cache_dir() == tmp_path / "setting"


def test_a_home_folder_in_the_environment_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AITUNE_CACHE_DIR", "~/aitune-test")
    assert aitune_cache_dir() == Path.home() / "aitune-test"


def test_override_holds_for_a_scope_and_nests() -> None:
    config = Config()
    with config.override(seed=1, max_graphs=2) as scoped:
        assert scoped is config
        with config.override(seed=7):
            assert (config.seed, config.max_graphs) == (7, 2)
        assert config.seed == 1
    assert (config.seed, config.max_graphs) == (0, 16)


def test_override_puts_values_back_after_an_exception() -> None:
    config = Config()

    def fail() -> None:
        with config.override(strict_mode=False):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert config.strict_mode


def test_an_unknown_setting_is_an_error_and_changes_nothing() -> None:
    config = Config()
    with pytest.raises(AITuneUserInputError, match=r"no setting sead.*seed"), config.override(seed=3, sead=3):
        pass
    assert config == Config()


@pytest.mark.parametrize("below", ["", "deeper/still"])
@pytest.mark.parametrize("by_setting", [True, False])
def test_a_cache_folder_that_cannot_be_used_is_named_with_what_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, below: str, by_setting: bool
) -> None:
    (tmp_path / "file").write_text("in the way")
    folder, config = tmp_path / "file" / below, Config()
    if by_setting:
        config.cache_dir = folder
    else:
        monkeypatch.setenv("AITUNE_CACHE_DIR", str(folder))
    with pytest.raises(AITuneEnvironmentError) as caught:
        config.new_folder("samples", "recording-")
    assert repr(str(folder)) in str(caught.value)
    assert f"{'config.cache_dir' if by_setting else 'AITUNE_CACHE_DIR'}" in str(caught.value).split(" names it")[0]


def test_a_cache_folder_that_the_system_refuses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*args: object, **kwargs: object) -> str:
        raise PermissionError("not yours")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    with pytest.raises(AITuneEnvironmentError, match="not yours"):
        Config(cache_dir=tmp_path).new_folder("samples", "recording-")


def test_a_cache_folder_that_is_no_path() -> None:
    with pytest.raises(AITuneUserInputError, match=r"config\.cache_dir must be a path"):
        Config(cache_dir=3).resolve_cache_dir()  # type: ignore[arg-type]

from pathlib import Path

import platformdirs
import pytest

from aitune.exceptions import AITuneUserInputError
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

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cache_dir", 3),
        ("cache_dir", b"folder"),
        ("max_num_samples_stored", 0),
        ("max_graphs", 1.5),
        ("strict_mode", "no"),
        ("on_unknown_input", "raise"),
        ("on_exceptional_values", ["report"]),
        ("weight_check_interval", -1),
        ("minimum_gain", "1%"),
        ("minimum_gain", float("nan")),
        ("num_threads", 0),
        ("num_threads", True),
        ("seed", "x"),
        ("seed", -1),
        ("seed", 2**64),
        ("device_after_tuning", 0),
        ("enable_transformers_integration", 1),
        ("enable_diffusers_integration", None),
    ],
)
def test_a_value_that_a_setting_may_not_have_is_refused_where_it_is_set(name: str, value: Any) -> None:
    config = Config()
    for change in (lambda: setattr(config, name, value), lambda: Config(**{name: value})):
        with pytest.raises(AITuneUserInputError, match=rf"config\.{name} must be"):
            change()
    others = {"cache_dir": "elsewhere", "seed": 3} | {name: value}
    with pytest.raises(AITuneUserInputError, match=rf"config\.{name} must be"), config.override(**others):
        pass
    assert config == Config()


def test_a_name_that_is_no_setting_cannot_be_set() -> None:
    with pytest.raises(AITuneUserInputError, match=r"no setting sead.*seed"):
        Config().sead = 3  # type: ignore[attr-defined]


def test_every_setting_may_have_its_default() -> None:
    for field in dataclasses.fields(Config):
        setattr(Config(), field.name, field.default)


def test_a_home_folder_in_the_setting_is_expanded() -> None:
    assert Config(cache_dir="~/aitune-test").resolve_cache_dir() == Path.home() / "aitune-test"  # type: ignore[arg-type]

"""Settings of backends are checked where they are given."""

from __future__ import annotations

import functools
import typing
from typing import Any

import pytest

from aitune.exceptions import AITuneUserInputError
from aitune.torch import backend as backends
from aitune.torch.backend.backend_config import BackendConfig

CONFIGS: list[type[BackendConfig]] = [
    getattr(backends, name) for name in backends.__all__ if name.endswith("BackendConfig")
]
FIELDS = [(config, name, kind) for config in CONFIGS for name, kind in typing.get_type_hints(config).items()]
SWITCHES = [(config, name) for config, name, kind in FIELDS if bool in (kind, *typing.get_args(kind))]
NAMED_SETTINGS = [(config, name) for config, name, kind in FIELDS if typing.get_origin(kind) is dict]


def test_every_backend_has_a_configuration_and_most_have_switches() -> None:
    assert len(CONFIGS) == 6
    assert len({config for config, _ in SWITCHES}) == 5
    assert len(NAMED_SETTINGS) == 2


@pytest.mark.parametrize(("config", "name"), SWITCHES)
def test_a_switch_is_true_or_false(config: type[Any], name: str) -> None:
    default = getattr(config(), name)
    for value in (True, False, default):
        assert getattr(config(**{name: value}), name) is value
    # A text would count as true, and None as false.
    for value in ("no", 0, 1, [], *([] if default is None else [None])):
        with pytest.raises(AITuneUserInputError, match=f"{config.__name__}: {name} must be True or False, got"):
            config(**{name: value})


@pytest.mark.parametrize(("config", "name"), NAMED_SETTINGS)
def test_settings_go_by_name(config: type[Any], name: str) -> None:
    assert getattr(config(**{name: {"max_autotune": True}}), name) == {"max_autotune": True}
    for value in ("max_autotune", ["max_autotune"], None, {1: True}):
        with pytest.raises(AITuneUserInputError, match=f"{config.__name__}: {name} must be a dict of settings by name"):
            config(**{name: value})


def test_a_filter_of_layers_can_be_called() -> None:
    with pytest.raises(AITuneUserInputError, match="filter_fn must be a function"):
        backends.TorchAOBackendConfig(filter_fn="linear")  # type: ignore[arg-type]
    config = backends.TorchAOBackendConfig(filter_fn=functools.partial(isinstance))
    assert config.to_dict()["filter_fn"] == "functools.partial"

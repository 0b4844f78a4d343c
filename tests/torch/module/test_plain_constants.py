import enum
import json
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aitune.artifact.graph_record import LeafRecord
from aitune.exceptions import ArtifactError
from aitune.torch.module.plain_constants import constant_from_dict, constant_to_dict
from aitune.torch.module.sample_metadata import Constant


class Mode(enum.Enum):
    FAST = 1
    SLOW = "slow"


class Level(enum.IntEnum):
    LOW = 1


class Options(enum.Flag):
    ONE = 1
    TWO = 2


INTEGERS = st.none() | st.integers(-5, 5)
CONSTANTS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers(allow_nan=True)
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.builds(slice, INTEGERS, INTEGERS, INTEGERS)
    | st.sampled_from(
        [
            ...,
            Mode.FAST,
            Mode.SLOW,
            Level.LOW,
            Options.TWO,
            torch.float16,
            torch.strided,
            torch.channels_last,
            torch.device("cpu"),
            torch.device("cuda:1"),
        ]
    )
)


@given(CONSTANTS)
def test_a_constant_comes_back_and_a_file_may_hold_it(value: Any) -> None:
    data = constant_to_dict(Constant(("options", 0), value))
    record = msgspec.json.decode(json.dumps(data), type=LeafRecord)
    read = constant_from_dict(json.loads(msgspec.json.encode(record)))
    assert read.locator == ("options", 0)
    assert read.key == Constant((), value).key
    assert type(read.value) is type(value)


def local_enum() -> Any:
    class Local(enum.Enum):
        ONE = 1

    return Local.ONE


class Text(str):
    """A string of a class of its own."""


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (slice(0.5), "is a slice, which has no stored form"),
        (Options.ONE | Options.TWO, "is a Options, which has no stored form"),
        (Text("a"), "is a Text, which has no stored form"),
        (local_enum(), "Local, which cannot be found by that name"),
    ],
)
def test_a_constant_without_a_stored_form_is_named(value: Any, said: str) -> None:
    with pytest.raises(ArtifactError, match=said) as error:
        constant_to_dict(Constant(("options", "deep"), value))
    assert "options['deep'] = " in str(error.value)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"enum": ["not.imported", "Mode", "FAST"]}, "import not.imported before loading"),
        ({"enum": [__name__, "Mode", "MIDDLE"]}, "no member 'MIDDLE'"),
        ({"enum": [__name__, "Text", "FAST"]}, "no member 'FAST' of an enum"),
        ({"enum": ["os", "system", "FAST"]}, "os.system"),
        ({"complex": "one"}, "complex"),
        ({"bytes": "!"}, "base64"),
        ({"float": "pi"}, "float"),
        ({"dtype": "nn"}, "torch has no dtype named 'nn'"),
        ({"device": "oven"}, "torch has no device named 'oven'"),
    ],
)
def test_what_is_not_here_or_is_no_constant_is_refused(data: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        constant_from_dict({"locator": ["x"], **data})

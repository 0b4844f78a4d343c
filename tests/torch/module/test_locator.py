from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from aitune.torch.module.locator import format_locator, locator_from_key_path

TREES = st.recursive(
    st.integers(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(0, 3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(tree=TREES)
def test_a_locator_reads_as_the_python_that_reaches_the_leaf(tree: Any) -> None:
    for key_path, leaf in pytree.tree_flatten_with_path(tree)[0]:
        locator = locator_from_key_path(key_path)
        reached = tree
        for key in locator:
            reached = reached[key]
        assert reached is leaf
        written = format_locator(("tree", *locator))
        assert eval(written, {"tree": tree}) is leaf


@pytest.mark.parametrize(
    ("locator", "text"),
    [
        ((), "output"),
        (("x",), "x"),
        ((0,), "output[0]"),
        (("options", "mask"), "options['mask']"),
        (("items", 0, "a"), "items[0]['a']"),
    ],
)
def test_locators_in_words(locator: tuple[str | int, ...], text: str) -> None:
    assert format_locator(locator) == text


def test_the_root_can_be_named() -> None:
    assert format_locator((), "result") == "result"
    assert format_locator((1,), "result") == "result[1]"


def test_keys_of_other_types_are_written_out_and_true_is_not_one() -> None:
    paths = pytree.tree_flatten_with_path({True: 1, (2, 3): 4, None: 5})[0]
    assert [locator_from_key_path(path) for path, _ in paths] == [("True",), ("(2, 3)",), ("None",)]

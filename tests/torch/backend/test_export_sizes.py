from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aitune.torch.backend.export_sizes import choose_example, coincident_symbols
from aitune.torch.module.tensor_spec import Symbol

LENGTHS = {"a": Symbol("a", 1, 9), "b": Symbol("b", 1, 9), "batch": Symbol("batch", 1, 8, is_batch=True)}


def test_symbols_that_always_agreed_are_grouped() -> None:
    assert coincident_symbols(LENGTHS, [{"a": 3, "b": 3, "batch": 3}, {"a": 5, "b": 5, "batch": 5}]) == (("a", "b"),)
    assert coincident_symbols(LENGTHS, [{"a": 3, "b": 3, "batch": 1}, {"a": 5, "b": 4, "batch": 1}]) == ()


def test_example_avoids_one_and_equal_sizes() -> None:
    assert choose_example(LENGTHS, [{"a": 2, "b": 2, "batch": 1}]) == (0, {"a": 2, "b": 2, "batch": 3})
    assert choose_example(LENGTHS, [{"a": 1, "b": 1, "batch": 4}]) == (0, {"a": 2, "b": 2, "batch": 4})


def test_example_keeps_recorded_sizes_that_will_do() -> None:
    recorded = [{"a": 1, "b": 2, "batch": 1}, {"a": 4, "b": 7, "batch": 2}, {"a": 9, "b": 8, "batch": 8}]
    assert choose_example(LENGTHS, recorded) == (1, recorded[1])


def test_batch_size_of_the_example_lies_inside_its_range() -> None:
    symbols = {"batch": Symbol("batch", 1, 16, is_batch=True)}
    assert choose_example(symbols, [{"batch": 1}, {"batch": 16}]) == (1, {"batch": 8})
    narrow = {"batch": Symbol("batch", 1, 2, is_batch=True)}
    assert choose_example(narrow, [{"batch": 1}, {"batch": 2}]) == (1, {"batch": 2})


@st.composite
def _cases(draw: st.DrawFn) -> tuple[dict[str, Symbol], list[dict[str, int]]]:
    symbols = {}
    for number in range(draw(st.integers(1, 4))):
        low = draw(st.integers(1, 4))
        symbol = Symbol(f"s{number}", low, low + draw(st.integers(0, 5)), is_batch=number == 0)
        symbols[symbol.name] = symbol
    recorded = draw(
        st.lists(
            st.fixed_dictionaries({n: st.integers(s.min, s.max) for n, s in symbols.items()}), min_size=1, max_size=4
        )
    )
    return symbols, recorded


@given(_cases())
def test_example_lies_in_the_bounds_and_keeps_agreement(case: tuple[dict[str, Symbol], list[dict[str, int]]]) -> None:
    symbols, recorded = case
    index, sizes = choose_example(symbols, recorded)
    assert 0 <= index < len(recorded)
    assert set(sizes) == set(symbols)
    for name, symbol in symbols.items():
        assert symbol.min <= sizes[name] <= symbol.max
        grouped = any(name in group for group in coincident_symbols(symbols, recorded))
        if not grouped and symbol.max >= 2:
            assert sizes[name] >= 2
    for group in coincident_symbols(symbols, recorded):
        assert len({sizes[name] for name in group}) == 1

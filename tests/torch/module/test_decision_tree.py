from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from aitune.torch.module.decision_tree import Branch, decision_lines


def function_of(branches: list[Branch]) -> object:
    source = "\n".join(["def decide(v, seen):", *decision_lines(branches), "    return None"])
    names: dict[str, object] = {}
    exec(source, names)
    return names["decide"]


def chain(digits: tuple[int, ...]) -> Branch:
    """A branch for one sequence of digits, that takes note of every comparison."""
    conditions = tuple(f"not seen.append(({at}, {digit})) and v[{at}] == {digit}" for at, digit in enumerate(digits))
    return Branch(conditions, (f"return {digits!r}",))


@given(st.sets(st.tuples(*[st.integers(0, 2)] * 3), min_size=1, max_size=20))
def test_each_call_finds_its_branch_and_nothing_is_compared_twice(sequences: set[tuple[int, ...]]) -> None:
    decide = function_of([chain(digits) for digits in sorted(sequences)])
    for value in product(range(3), repeat=3):
        seen: list[tuple[int, int]] = []
        assert decide(value, seen) == (value if value in sequences else None)  # type: ignore[operator]
        assert len(seen) == len(set(seen))


def test_names_bound_by_a_shared_condition_are_known_in_every_branch() -> None:
    branches = [Branch(("(size := len(v)) > 0", f"size == {n}"), (f"return size * {n}",)) for n in (1, 2, 3)]
    decide = function_of(branches)
    assert [decide("a" * n, None) for n in range(5)] == [None, 1, 4, 9, None]  # type: ignore[operator]


def test_a_branch_without_further_conditions_comes_last() -> None:
    decide = function_of([Branch(("v > 0",), ("return 'some'",)), Branch(("v > 0", "v > 5"), ("return 'many'",))])
    assert [decide(value, None) for value in (0, 1, 9)] == [None, "some", "many"]  # type: ignore[operator]


def test_bodies_of_several_lines_keep_their_own_indentation() -> None:
    decide = function_of([Branch(("v",), ("if v == 1:", "    return 'one'", "return 'other'"))])
    assert [decide(value, None) for value in (0, 1, 2)] == [None, "one", "other"]  # type: ignore[operator]


def test_deep_trees_stay_within_what_python_can_nest() -> None:
    steps = [
        Branch((*(f"v >= {n}" for n in range(depth)), f"v == {depth}"), (f"return {depth}",)) for depth in range(150)
    ]
    decide = function_of(steps)
    assert [decide(value, None) for value in (0, 1, 75, 149, 150)] == [0, 1, 75, 149, None]  # type: ignore[operator]

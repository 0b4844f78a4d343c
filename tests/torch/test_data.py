import warnings
from collections import UserDict, namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from aitune.exceptions import AITuneUserInputError, UnsupportedCallError
from aitune.torch.data import Batch, DataLoaderFactory, check_batch_sizes, iterate_batches

Pair = namedtuple("Pair", "image label")


class Numbers(Dataset[torch.Tensor]):
    """``tensor([index])`` by index; notes what is read, and raises where it is told to."""

    def __init__(self, length: int, fail_at: int | None = None) -> None:
        self.length = length
        self.fail_at = fail_at
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.fail_at:
            raise OSError("disk gone")
        self.read.append(index)
        return torch.tensor([float(index)])


class Stream(IterableDataset[torch.Tensor]):
    """The same without indices."""

    def __init__(self, length: int, fail_at: int | None = None) -> None:
        self.length = length
        self.fail_at = fail_at
        self.read: list[int] = []

    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in range(self.length):
            if index == self.fail_at:
                raise OSError("disk gone")
            self.read.append(index)
            yield torch.tensor([float(index)])


def batches(dataset: Any, sizes: Any = (2,), limit: int | None = None) -> list[Batch]:
    return list(iterate_batches(dataset, sizes, limit))


def rows(batch: Batch) -> list[float]:
    """What :class:`Numbers` gave for each row."""
    (tensor,) = batch.args
    return tensor.flatten().tolist()  # type: ignore[no-any-return]


# -- what becomes of samples ---------------------------------------------------------------------------------------


def test_a_tensor_is_one_sample_repeated_to_fill_a_batch() -> None:
    sample = torch.arange(6.0).reshape(2, 3)
    one, three = batches(sample, [3, 1])
    assert (one.batch_size, three.batch_size) == (1, 3)
    assert torch.equal(three.args[0], torch.stack([sample] * 3))
    assert torch.equal(one.args[0], sample[None])
    assert one.kwargs == three.kwargs == {}


def test_a_scalar_tensor_is_a_sample_too() -> None:
    (batch,) = batches(torch.tensor(4.0))
    assert batch.args[0].tolist() == [4.0, 4.0]


def test_a_list_of_tensors_is_stacked() -> None:
    (batch,) = batches([torch.zeros(3), torch.ones(3)])
    assert batch.args[0].tolist() == [[0.0] * 3, [1.0] * 3]


def test_dicts_become_keyword_arguments() -> None:
    samples = [{"ids": torch.tensor([i]), "text": f"t{i}", "scale": 0.5 * i, "none": None} for i in range(2)]
    (batch,) = batches(samples)
    assert batch.args == ()
    assert batch.kwargs["ids"].tolist() == [[0], [1]]
    assert batch.kwargs["text"] == ["t0", "t1"]
    assert batch.kwargs["scale"].tolist() == [0.0, 0.5]
    assert batch.kwargs["none"] is None


@pytest.mark.parametrize("container", [tuple, list, lambda items: Pair(*items)])
def test_several_inputs_become_positional_arguments(container: Callable[[Any], Any]) -> None:
    (batch,) = batches([container((torch.tensor([i]), f"label {i}")) for i in range(2)])
    assert batch.kwargs == {}
    assert len(batch.args) == 2
    assert batch.args[0].tolist() == [[0], [1]]
    assert batch.args[1] == ["label 0", "label 1"]


def test_pairs_of_strings_are_two_arguments() -> None:
    (batch,) = batches([("question 0", "answer 0"), ("question 1", "answer 1")])
    assert batch.args == (["question 0", "question 1"], ["answer 0", "answer 1"])


def test_strings_are_one_list() -> None:
    one, two = batches(["a", "b"], [1, 2], limit=1)
    assert (one.args, two.args) == ((["a"],), (["a", "b"],))


def test_nested_containers_are_collated_by_entry() -> None:
    samples = [{"options": {"boxes": [torch.tensor([i]), torch.tensor(i)], "tags": ("x", i)}} for i in range(2)]
    (batch,) = batches(samples)
    options = batch.kwargs["options"]
    assert options["boxes"][0].tolist() == [[0], [1]]
    assert options["boxes"][1].tolist() == [0, 1]
    assert options["tags"][0] == ["x", "x"]
    assert isinstance(options["boxes"], list)
    assert isinstance(options["tags"], tuple)


def test_other_objects_stay_a_list_as_one_argument() -> None:
    first, second = object(), object()
    (batch,) = batches([first, second])
    assert batch.args == ([first, second],)


def test_numbers_become_a_tensor() -> None:
    assert [batches(pair)[0].args[0].dtype for pair in ([1, 2], [0.5, 1], [True, False])] == [
        torch.int64, torch.float32, torch.bool
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.int16, np.bool_, np.float64])
def test_arrays_become_tensors_of_the_same_dtype(dtype: Any) -> None:
    array = np.ones((2, 3), dtype=dtype)
    array.setflags(write=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (batch,) = batches([array, array])
        (single,) = batches(array)
    assert batch.args[0].shape == single.args[0].shape == (2, 2, 3)
    assert batch.args[0].numpy().dtype == single.args[0].numpy().dtype == dtype


def test_numbers_and_strings_of_numpy() -> None:
    (batch,) = batches([{"x": np.float32(1.5), "name": np.str_("a")}, {"x": np.float32(2.5), "name": np.str_("b")}])
    assert (batch.kwargs["x"].dtype, batch.kwargs["name"]) == (torch.float32, ["a", "b"])


def test_an_encoding_is_a_dict() -> None:
    (batch,) = batches([UserDict(ids=torch.tensor([1])), UserDict(ids=torch.tensor([2]))])
    assert batch.kwargs["ids"].tolist() == [[1], [2]]


# -- how samples are read ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Numbers, Stream, lambda n: [Numbers(n)[i] for i in range(n)]])
@given(length=st.integers(1, 7), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=3))
def test_every_batch_is_full_in_order_and_covers_every_sample(
    kind: Callable[[int], Any], length: int, sizes: list[int]
) -> None:
    given_batches = batches(kind(length), sizes)
    assert [b.batch_size for b in given_batches] == sorted(b.batch_size for b in given_batches)
    assert {b.batch_size for b in given_batches} == set(sizes)
    for size in set(sizes):
        read = [row for batch in given_batches if batch.batch_size == size for row in rows(batch)]
        assert len(read) == -(-length // size) * size
        assert read == [float(position % length) for position in range(len(read))]


@pytest.mark.parametrize("kind", [Numbers, Stream])
def test_no_more_is_read_than_needed(kind: Any) -> None:
    dataset = kind(100)
    iterator = iterate_batches(dataset, [4, 8], 1)
    assert dataset.read == []
    next(iterator)
    assert dataset.read == [0, 1, 2, 3]
    list(iterator)
    assert dataset.read == [*range(4), *range(8)]


def test_the_largest_number_of_batches_holds_for_each_size() -> None:
    assert [b.batch_size for b in batches(Numbers(10), [1, 2], 3)] == [1, 1, 1, 2, 2, 2]


def test_without_batch_sizes_one_and_two_are_taken() -> None:
    assert [b.batch_size for b in batches(Numbers(2), None)] == [1, 1, 2]


def test_batch_sizes_are_sorted_and_taken_once() -> None:
    assert check_batch_sizes([8, 1, 8]) == (1, 8)
    assert check_batch_sizes((np.int64(2),)) == (2,)  # type: ignore[arg-type]


def test_random_numbers_of_the_user_stay_as_they_were() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    batches(Numbers(4), [1, 2])
    assert torch.equal(torch.get_rng_state(), before)


def test_a_dataset_that_only_looks_like_one_is_read_by_index() -> None:
    class Table:
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> dict[str, int]:
            return {"x": index}

    assert batches(Table())[0].kwargs["x"].tolist() == [0, 1]


def test_a_tensor_dataset_gives_its_columns() -> None:
    (batch,) = batches(TensorDataset(torch.arange(4).reshape(2, 2), torch.tensor([5, 6])))
    assert [argument.tolist() for argument in batch.args] == [[[0, 1], [2, 3]], [5, 6]]


# -- loaders and functions -----------------------------------------------------------------------------------------


def test_a_loader_gives_its_own_batches_and_their_sizes() -> None:
    given_batches = batches(DataLoader(Numbers(5), batch_size=2), None)
    assert [(b.batch_size, rows(b)) for b in given_batches] == [(2, [0, 1]), (2, [2, 3]), (1, [4])]


def test_a_loader_whose_size_is_asked_for_is_left_as_it_is() -> None:
    shuffled = DataLoader(Numbers(4), batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(3))
    order = [row for b in batches(shuffled, [2]) for row in rows(b)]
    assert sorted(order) == [0, 1, 2, 3]
    assert order != [0, 1, 2, 3]


def test_a_loader_is_batched_anew_for_other_sizes_in_order_with_its_collate_fn() -> None:
    def doubled(samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"x": 2 * torch.stack(samples)}

    loader = DataLoader(Numbers(4), batch_size=2, shuffle=True, collate_fn=doubled)
    one, *_, four = batches(loader, [4, 1])
    assert one.kwargs["x"].tolist() == [[0]]
    assert (four.batch_size, four.kwargs["x"].flatten().tolist()) == (4, [0, 2, 4, 6])


def test_a_loader_without_batches_of_its_own_is_batched() -> None:
    assert [b.batch_size for b in batches(DataLoader(Numbers(4), batch_size=None), [2])] == [2, 2]


def test_a_loader_of_a_stream_cannot_be_batched_anew() -> None:
    with pytest.raises(
        AITuneUserInputError, match=r"\[4\] differ from the DataLoader's batch size 2.*leave batch_sizes out"
    ):
        iterate_batches(DataLoader(Stream(4), batch_size=2), [4])


def test_a_loader_of_lists_of_inputs_and_of_strings() -> None:
    inputs = DataLoader([(torch.tensor([i]), torch.tensor(i)) for i in range(2)], batch_size=2)  # type: ignore[arg-type]
    assert len(batches(inputs, None)[0].args) == 2
    (strings,) = batches(DataLoader(["a", "b"], batch_size=2), None)  # type: ignore[arg-type]
    assert (strings.batch_size, strings.args) == (2, (["a", "b"],))


def test_a_function_makes_the_batches_of_each_size() -> None:
    asked = []

    def make(batch_size: int) -> DataLoader[torch.Tensor]:
        asked.append(batch_size)
        return DataLoader(Numbers(5), batch_size=batch_size)

    given_batches = batches(make, [2, 4], 2)
    assert asked == [2, 4]
    assert [(b.batch_size, len(rows(b))) for b in given_batches] == [(2, 2), (2, 2), (4, 4), (1, 1)]


def test_a_function_with_fewer_samples_than_asked_for_is_labelled_truly() -> None:
    (batch,) = batches(lambda size: DataLoader(Numbers(3), batch_size=size), [8])
    assert (batch.batch_size, rows(batch)) == (3, [0, 1, 2])


def test_a_leading_axis_that_counts_something_else_is_not_taken_for_the_batch() -> None:
    sequence_first = [torch.zeros(20, 4, 8), torch.zeros(3, 4, 8)]
    assert [b.batch_size for b in batches(lambda size: sequence_first, [4])] == [4, 4]


def test_a_factory_is_taken_as_it_is() -> None:
    factory = DataLoaderFactory(["aa", "b"], collate_fn=lambda texts: {"lengths": torch.tensor([*map(len, texts)])})
    (batch,) = batches(factory)
    assert batch.kwargs["lengths"].tolist() == [2, 1]


def test_a_collate_fn_that_pads_makes_lengths_fit() -> None:
    factory = DataLoaderFactory(
        [torch.ones(2), torch.ones(4)], lambda samples: torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)
    )
    (batch,) = batches(factory)
    assert batch.args[0].shape == (2, 4)


def test_a_factory_makes_loaders_for_use_by_hand() -> None:
    loader = DataLoaderFactory(Numbers(3)).create_dataloader(2)
    assert isinstance(loader, DataLoader)
    assert [batch.flatten().tolist() for batch in loader] == [[0, 1], [2, 0]]
    (strings,) = DataLoaderFactory(["a", "b"]).create_dataloader(2)
    assert strings == ["a", "b"]


def test_workers_read_the_same_batches() -> None:
    loader = DataLoaderFactory(Numbers(3), num_workers=1).create_dataloader(2)
    loader.multiprocessing_context = "forkserver"
    assert [batch.flatten().tolist() for batch in loader] == [[0, 1], [2, 0]]


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [[0], [-1], [2.0], [True], ["2"], [None], [1, 0], [], 4, "12", (x for x in [])])
def test_batch_sizes_that_are_none(sizes: Any) -> None:
    with pytest.raises(AITuneUserInputError, match=r"batch.size"):
        iterate_batches([torch.zeros(1)], sizes)


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "1"])
def test_a_number_of_batches_that_is_none(limit: Any) -> None:
    with pytest.raises(AITuneUserInputError, match=f"max_num_batches_per_batch_size.*got {limit!r}"):
        iterate_batches([torch.zeros(1)], [1], limit)


@pytest.mark.parametrize("dataset", [[], (), Numbers(0), TensorDataset(torch.zeros(0, 3))])
def test_an_empty_dataset_is_refused_at_once(dataset: Any) -> None:
    with pytest.raises(AITuneUserInputError, match="dataset is empty"):
        iterate_batches(dataset, [1])


@pytest.mark.parametrize("dataset", [Stream(0), lambda size: [], DataLoader(Numbers(0), batch_size=1)])
def test_an_empty_stream_is_refused_when_it_is_read(dataset: Any) -> None:
    with pytest.raises(AITuneUserInputError, match="gave no"):
        batches(dataset, [1])


def test_a_stream_that_cannot_begin_anew_is_found_out() -> None:
    class Once(IterableDataset[torch.Tensor]):
        left = iter([torch.zeros(1)])

        def __iter__(self) -> Iterator[torch.Tensor]:
            return self.left

    iterator = iterate_batches(Once(), [1, 2])
    assert next(iterator).batch_size == 1
    with pytest.raises(AITuneUserInputError, match="begin anew"):
        next(iterator)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ("text", "one string, 'text'; give a list of strings"),
        ({"x": torch.zeros(1)}, "list of dicts"),
        (3, "is a builtins.int; it must be a tensor"),
        (None, "is a builtins.NoneType"),
        ((i for i in [torch.zeros(1)]), "put its items into a list"),
        ({1, 2}, "put its items into a list"),
        (torch.nn.Linear(1, 1), "is a module"),
        (Numbers, "it must be a tensor"),
    ],
)
def test_what_is_no_dataset_is_refused_at_once(dataset: Any, message: str) -> None:
    with pytest.raises(AITuneUserInputError, match=message):
        iterate_batches(dataset, [1])


def test_a_dataset_without_a_length_is_refused() -> None:
    class Endless(Dataset[int]):
        def __getitem__(self, index: int) -> int:
            return index

    with pytest.raises(AITuneUserInputError, match="it must be"):
        iterate_batches(Endless(), [1])


@pytest.mark.parametrize("kind", [Numbers, Stream])
def test_a_dataset_that_raises_names_the_index_and_chains_the_cause(kind: Any) -> None:
    iterator = iterate_batches(kind(5, fail_at=3), [2])
    next(iterator)
    with pytest.raises(AITuneUserInputError, match="raised OSError at index 3: disk gone") as caught:
        next(iterator)
    assert isinstance(caught.value.__cause__, OSError)


def test_ctrl_c_and_errors_of_our_own_pass_through() -> None:
    class Raising(Numbers):
        def __init__(self, error: BaseException) -> None:
            super().__init__(2)
            self.error = error

        def __getitem__(self, index: int) -> torch.Tensor:
            raise self.error

    for error in (KeyboardInterrupt(), UnsupportedCallError("ours")):
        with pytest.raises(type(error)) as caught:
            batches(Raising(error))
        assert caught.value is error


@pytest.mark.parametrize("result", [torch.zeros(2), {"x": 1}, "text", 3, None])
def test_a_function_that_returns_no_batches_is_refused(result: Any) -> None:
    with pytest.raises(AITuneUserInputError, match=r"called with batch size 2 returned a .*iterable of batches"):
        batches(lambda size: result)


def test_a_function_that_raises_is_named() -> None:
    def failing(batch_size: int) -> Any:
        raise OSError("disk gone")

    with pytest.raises(AITuneUserInputError, match="called with batch size 2 raised OSError: disk gone"):
        batches(failing)


def test_a_loader_that_raises_names_the_batch() -> None:
    with pytest.raises(AITuneUserInputError, match="the DataLoader raised OSError at index 1"):
        batches(DataLoader(Numbers(4, fail_at=2), batch_size=2), None)


def test_a_batch_of_unknown_size_is_refused() -> None:
    with pytest.raises(AITuneUserInputError, match="batch size is not known"):
        batches(DataLoader([{"x": object()}], batch_size=None), None)  # type: ignore[arg-type]


def test_a_batch_without_rows_is_refused() -> None:
    with pytest.raises(AITuneUserInputError, match=r"batch 1 of .* has no samples"):
        batches(lambda size: [torch.zeros(2, 3), torch.zeros(0, 3)])


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([torch.zeros(3), torch.zeros(3), torch.zeros(5)], r"samples 0 and 2 .* are \(3,\) and \(5,\).*collate_fn"),
        ([torch.zeros(3), torch.zeros(3), torch.zeros(3).long()], "samples 0 and 2 .*dtypes are torch.float32 and"),
        ([{"a": torch.zeros(3)}, {"a": torch.zeros(2)}] * 2, r"samples 0 and 1 .* at \['a'\].*pad"),
        ([{"a": 1}, {"b": 1}, {"a": 1}], "samples 0 and 1 .*keys are {'a'} and {'b'}"),
        ([(1, 2), (1, 2), (1,)], "samples 0 and 2 .*lengths are 2 and 1"),
        ([torch.zeros(1), "text", 3], "samples 0 and 1 .*types"),
        (["text", torch.zeros(1), "text"], "samples 0 and 1 .*types"),
        ([1, "1", 1], "samples 0 and 1 .*types"),
        ([None, 1, 1], "samples 0 and 1 .*types"),
        ([{"a": 1}, [1], {"a": 1}], "samples 0 and 1 .*keys"),
        ([{"a": 1}, {"a": 1}, {"a": 10**30}], r"samples 0 to 2 .* at \['a'\] that no tensor can"),
    ],
)  # fmt: skip
def test_samples_that_do_not_fit_together_are_named(samples: list[Any], message: str) -> None:
    with pytest.raises(AITuneUserInputError, match=message):
        batches(samples, [3])


def test_the_second_batch_names_samples_by_their_place_in_the_dataset() -> None:
    with pytest.raises(AITuneUserInputError, match="samples 2 and 3"):
        batches([torch.zeros(1)] * 3 + [torch.zeros(2)], [2])


def test_an_array_without_a_tensor_form_is_named() -> None:
    with pytest.raises(AITuneUserInputError, match="sample 1 is an array of dtype <U1"):
        batches([torch.zeros(1), np.array(["a"])])


def test_a_collate_fn_that_raises_names_the_samples() -> None:
    def failing(samples: list[Any]) -> Any:
        raise ValueError("no padding token")

    with pytest.raises(
        AITuneUserInputError, match=r"collate_fn raised ValueError on samples \[0, 1\]: no padding token"
    ):
        batches(DataLoaderFactory(["a", "b"], failing))


class RefusesItsEntries(dict[str, int]):
    def __getitem__(self, key: str) -> int:
        raise RuntimeError("closed")


class MadeOfOneEntry(Pair):
    def __new__(cls, both: Any) -> Any:
        return super().__new__(cls, both, both)


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (RefusesItsEntries(a=1), r"stacking raised RuntimeError on samples \[0, 1\]: closed; .*collate_fn"),
        (MadeOfOneEntry(torch.zeros(1)), r"stacking raised TypeError on samples \[0, 1\]: .*collate_fn"),
    ],
)
def test_containers_that_cannot_be_batched_are_named(sample: Any, message: str) -> None:
    with pytest.raises(AITuneUserInputError, match=message):
        batches([sample, sample], [2])


@pytest.mark.parametrize("streamed", [False, True])
def test_a_sample_that_holds_itself_is_refused(streamed: bool) -> None:
    sample: list[Any] = []
    sample.append(sample)

    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            yield sample

    with pytest.raises(AITuneUserInputError, match="a sample holds itself"):
        batches(Stream() if streamed else [sample], [1])


def test_batch_sizes_that_raise_are_named() -> None:
    with pytest.raises(AITuneUserInputError, match="batch_sizes raised ZeroDivisionError at index 1"):
        batches([1], (4 // size for size in (1, 0)))  # type: ignore[arg-type]


def test_a_dict_with_other_keys_than_strings_is_no_keyword_argument() -> None:
    with pytest.raises(AITuneUserInputError, match="keys must be strings, got 3"):
        batches([{3: torch.zeros(1)}] * 2)


@pytest.mark.parametrize("arguments", [{"collate_fn": 3}, {"num_workers": -1}, {"num_workers": True}])
def test_arguments_of_a_factory_are_checked(arguments: dict[str, Any]) -> None:
    with pytest.raises(AITuneUserInputError, match=next(iter(arguments))):
        DataLoaderFactory([1], **arguments)
    with pytest.raises(AITuneUserInputError, match="batch size"):
        DataLoaderFactory([1]).create_dataloader(0)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("size", "sample"), [(10**12, torch.zeros(1)), (100, torch.zeros(100))])
def test_a_batch_that_cannot_fit_is_refused_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch, size: int, sample: torch.Tensor, streamed: bool
) -> None:
    read: list[int] = []

    class Endless(torch.utils.data.IterableDataset[torch.Tensor]):
        def __iter__(self) -> Iterator[torch.Tensor]:
            for index in range(1000):
                read.append(index)
                yield sample

    monkeypatch.setattr("aitune.torch.numbered_samples.available_memory", lambda: 30_000)
    dataset = Endless() if streamed else [sample]
    with pytest.raises(AITuneUserInputError, match=rf"batch size {size} needs .* GiB .*smaller batch_sizes"):
        batches(dataset, [size])
    assert len(read) <= 1
    assert len(batches(dataset, [2], 1)) == 1


def test_a_sparse_sample_is_batched() -> None:
    (batch,) = batches([torch.eye(3).to_sparse()] * 2, [2])
    assert batch.args[0].shape == (2, 3, 3)


def test_a_limit_beyond_what_the_machine_counts() -> None:
    assert len(batches([torch.zeros(1)], [1], 10**30)) == 1


def test_where_the_memory_is_not_known_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aitune.torch.numbered_samples.available_memory", lambda: None)
    assert batches([torch.zeros(1)], [300])[0].args[0].shape == (300, 1)

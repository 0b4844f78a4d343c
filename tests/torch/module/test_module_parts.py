from collections import OrderedDict, deque, namedtuple

import torch

from aitune.torch.module.module_parts import joined, named_parts, plain_tensors, plain_values

Two = namedtuple("Two", ["left", "right"])


class Hiding(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen = torch.nn.Sequential(torch.nn.ReLU())
        self.layers = [torch.nn.Tanh(), {"deep": (torch.nn.Sequential(torch.nn.Sigmoid()),)}]
        self.__dict__["aside"] = self.seen
        self.table = torch.zeros(2)
        self.kept = OrderedDict(a=deque([torch.ones(1)]), b=Two(torch.ones(2), 3))
        self.register_buffer("buffer", torch.zeros(1))
        self.weight = torch.nn.Parameter(torch.zeros(1))


def test_parts_in_plain_containers_are_found_once_with_their_names() -> None:
    module = Hiding()
    names = [name for name, _ in named_parts(module)]
    assert names == ["", "seen", "seen.0", "layers[0]", "layers[1]['deep'][0]", "layers[1]['deep'][0].0"]
    assert names[:3] == [name for name, _ in module.named_modules()]


def test_a_part_that_knows_its_whole_is_no_endless_walk() -> None:
    module = torch.nn.Module()
    part = torch.nn.Module()
    module.part = part
    part.parents = [module]
    endless: list[object] = []
    endless.append(endless)
    part.endless = endless
    assert [name for name, _ in named_parts(module)] == ["", "part"]


def test_a_large_table_is_not_walked_to_its_end() -> None:
    module = torch.nn.Module()
    module.vocabulary = dict.fromkeys(map(str, range(100_000)))
    module.matrix = [[0] * 1000] * 1000
    module.layers = [torch.nn.ReLU()] * 3
    assert len(list(plain_values(module))) == 1000 + 999 + 3
    assert [name for name, _ in named_parts(module)] == ["", "layers[0]"]


def test_containers_without_values_are_not_walked_to_their_end_either() -> None:
    class Key:
        seen = 0

        def __repr__(self) -> str:
            Key.seen += 1
            return "key"

    module = torch.nn.Module()
    module.empty = [{Key(): [] for _ in range(100)}] * 100
    assert list(plain_values(module)) == []
    assert 0 < Key.seen <= 1000


def test_plain_tensors_are_those_that_are_no_weights() -> None:
    assert [name for name, _ in plain_tensors(Hiding())] == ["table", "kept['a'][0]", "kept['b'][0]"]


def test_names_are_joined_as_torch_does() -> None:
    assert (joined("", "a"), joined("a", ""), joined("a", "b")) == ("a", "a", "a.b")

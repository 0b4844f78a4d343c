import torch

from aitune.torch.module.hook_watch import HookWatch, submodules_with_hooks


def module() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Sequential(torch.nn.ReLU()))


def moved(watch: HookWatch) -> bool:
    """What the written forward asks first."""
    return torch.utils.hooks.RemovableHandle.next_id != watch.last_handle


def test_a_hook_on_a_submodule_is_noticed_and_its_removal_too() -> None:
    model = module()
    known = model[0].register_forward_hook(lambda *_: None)
    watch = HookWatch(model)
    assert not moved(watch)
    handle = model[1][0].register_forward_pre_hook(lambda *_: None)
    assert moved(watch)
    assert watch.added() == "1.0"
    assert moved(watch)
    handle.remove()
    assert watch.added() is None
    assert not moved(watch)
    known.remove()
    assert watch.added() is None


def test_hooks_elsewhere_and_on_the_module_itself_do_not_matter() -> None:
    model = module()
    watch = HookWatch(model)
    model.register_forward_hook(lambda *_: None)
    torch.nn.Linear(1, 1).register_forward_hook(lambda *_: None)
    assert moved(watch)
    assert watch.added() is None
    assert not moved(watch)


def test_a_hook_that_takes_the_place_of_another_is_new() -> None:
    model = module()
    handle = model[0].register_forward_hook(lambda *_: None)
    watch = HookWatch(model)
    handle.remove()
    model[0].register_forward_hook(lambda *_: None)
    assert watch.added() == "0"


def test_submodules_with_hooks_are_named_once() -> None:
    model = module()
    assert submodules_with_hooks(model) == []
    model.register_forward_hook(lambda *_: None)
    model[1].register_forward_hook(lambda *_: None)
    model[1].register_forward_pre_hook(lambda *_: None)
    assert submodules_with_hooks(model) == ["1"]

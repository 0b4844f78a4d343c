"""Several threads call one tuned module."""

import logging
import random
import sys
import threading
from typing import Any

import torch
from serving_fakes import Net, call, tuned

CALLS = [call(torch.randn(b, 3)) for b in (1, 4)]
MASKED = [call(torch.randn(b, 3), torch.ones(b)) for b in (1, 4)]
X = torch.randn(2, 3)


class Mixed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.arange(3.0))

    def forward(self, x: torch.Tensor, mode: int = 0, extra: Any = None) -> Any:
        y = x + self.offset + mode
        return y if extra is None else {"y": y, "z": extra["z"] * 2}


def test_eight_threads_get_right_answers_while_another_module_is_tuned() -> None:
    module = Mixed().eval()
    calls = [call(torch.randn(b, 3), mode) for b in (1, 4) for mode in (0, 1)]
    calls += [call(torch.randn(b, 3), 0, {"z": torch.randn(b)}) for b in (1, 4)]
    wrapped = tuned(module, *calls)
    inputs = [torch.full((size, 3), float(size)) for size in range(1, 7)]
    offset = module.offset
    wrong: list[str] = []
    expected_inside = [0] * 8
    total = 5000

    def run(thread: int) -> None:
        generator = random.Random(thread)
        for _ in range(total):
            x, mode, extra = generator.choice(inputs), generator.randrange(3), generator.random() < 0.3
            if extra:
                answer = wrapped(x, mode, {"z": x[:, 0]})
                right = torch.equal(answer["y"], x + offset + mode) and torch.equal(answer["z"], x[:, 0] * 2)
                inside = mode == 0 and x.shape[0] <= 4
            else:
                right = torch.equal(wrapped(x, mode=mode), x + offset + mode)
                inside = mode < 2 and x.shape[0] <= 4
            expected_inside[thread] += inside
            if not right:
                wrong.append(f"{x.shape} {mode} {extra}")

    def tune_others(stop: threading.Event) -> None:
        while not stop.is_set():
            tuned(Net(), *CALLS)(X)

    stop = threading.Event()
    other = threading.Thread(target=tune_others, args=(stop,))
    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(8)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    logging.getLogger("aitune").setLevel(logging.ERROR)
    try:
        for thread in (other, *threads):
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        stop.set()
        other.join()
        sys.setswitchinterval(interval)
        logging.getLogger("aitune").setLevel(logging.NOTSET)
    assert wrong == []
    statistics = wrapped.stats()
    assert sum(statistics.served.values()) == sum(expected_inside)
    assert statistics.fallbacks == {"outside the tuned graphs": 8 * total - sum(expected_inside)}

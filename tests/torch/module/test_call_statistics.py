import gc
import sys
import threading
import weakref

import pytest

from aitune.torch.module.call_statistics import CallCounters, CallStatistics


def test_shares_and_totals() -> None:
    statistics = CallStatistics({"graph0": 3, "graph1": 1}, {"training mode": 4})
    assert (statistics.total, statistics.share_served) == (8, 0.5)
    assert CallStatistics({}, {}).share_served == 1.0


def test_counts_of_living_and_ended_threads_add_up() -> None:
    counters = CallCounters(["a", "b"])
    counters.local.values[1] += 5
    ready, done = threading.Barrier(4), threading.Event()

    def count() -> None:
        for _ in range(1000):
            counters.local.values[0] += 1
        ready.wait()
        done.wait()

    threads = [threading.Thread(target=count) for _ in range(3)]
    for thread in threads:
        thread.start()
    ready.wait()
    assert counters.read() == {"a": 3000, "b": 5}
    done.set()
    for thread in threads:
        thread.join()
    assert counters.read() == {"a": 3000, "b": 5}


def test_ended_threads_leave_nothing_behind() -> None:
    counters = CallCounters(["a"])

    def count() -> None:
        counters.local.values[0] += 1

    for _ in range(20):
        thread = threading.Thread(target=count)
        thread.start()
        thread.join()
    assert counters.read() == {"a": 20}
    assert len(counters._living) <= 1


def test_nothing_is_lost_when_threads_switch_all_the_time() -> None:
    counters = CallCounters(["a"])
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:

        def count() -> None:
            for _ in range(5000):
                counters.local.values[0] += 1

        threads = [threading.Thread(target=count) for _ in range(8)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert counters.read()["a"] <= 40_000
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert counters.read() == {"a": 40_000}


def test_counters_die_although_a_thread_that_used_them_lives() -> None:
    counters = CallCounters(["a"])
    counters.local.values[0] += 1
    gone = weakref.ref(counters)
    del counters
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("names", [[], ["only"]])
def test_unused_counters_read_zero(names: list[str]) -> None:
    assert CallCounters(names).read() == dict.fromkeys(names, 0)

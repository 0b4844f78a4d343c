import time

import pytest

from aitune.torch.task.machine import LocalMachine


@pytest.fixture
def proc(tmp_path):
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure" / "cpu").write_text(
        "some avg10=2.08 avg60=0.86 avg300=0.28 total=4565997\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
    )
    (tmp_path / "stat").write_text("cpu  100 20 30 4000 50 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
    return tmp_path


def test_pressure_is_read_in_seconds(proc):
    assert LocalMachine(proc).stalled_seconds() == pytest.approx(4.565997)


def test_busy_time_leaves_out_idle_waiting_and_guests(proc, monkeypatch):
    monkeypatch.setattr("os.sysconf", lambda name: 100, raising=False)
    assert LocalMachine(proc).busy_core_seconds() == pytest.approx((100 + 20 + 30 + 6 + 7 + 8) / 100)


def test_what_the_kernel_does_not_say_is_none(tmp_path):
    machine = LocalMachine(tmp_path)
    assert machine.stalled_seconds() is None
    assert machine.busy_core_seconds() is None


@pytest.mark.parametrize("text", ["", "full avg10=0.00 total=3\n", "some avg10=0.00 total=x\n"])
def test_an_unknown_format_is_none(proc, text):
    (proc / "pressure" / "cpu").write_text(text)
    assert LocalMachine(proc).stalled_seconds() is None


def test_clocks_are_those_that_the_documentation_names():
    machine = LocalMachine()
    before = (time.monotonic(), time.perf_counter_ns(), time.process_time())
    readings = (machine.now(), machine.clock_ns(), machine.process_seconds())
    machine.sleep(0.001)
    after = (time.monotonic(), time.perf_counter_ns(), time.process_time())
    assert all(low <= value <= high for low, value, high in zip(before, readings, after, strict=True))
    assert after[0] - readings[0] >= 0.001
    assert machine.num_cores >= 1


def test_memory_is_read_in_bytes(tmp_path, monkeypatch):
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "statm").write_text("400 25 10 1 0 50 0\n")
    monkeypatch.setattr("os.sysconf", lambda name: 4096, raising=False)
    assert LocalMachine(tmp_path).memory_bytes() == 25 * 4096
    assert LocalMachine(tmp_path / "nothing").memory_bytes() is None

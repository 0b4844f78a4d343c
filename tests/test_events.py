import logging

import pytest

from aitune.events import Emitter, Event, RunStarted, SampleRecorded, Warned


class Keeper:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)


class Failing:
    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.calls = 0

    def on_event(self, event: Event) -> None:
        self.calls += 1
        raise self.error


EVENTS = [RunStarted(("m",), (1, 2)), SampleRecorded(1, 1), Warned("careful")]


def test_every_listener_gets_every_event_in_order() -> None:
    first, second = Keeper(), Keeper()
    emitter = Emitter([first, second])
    for event in EVENTS:
        emitter.emit(event)
    assert first.events == second.events == EVENTS


def test_a_listener_that_fails_is_logged_and_dropped_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    failing, keeper = Failing(ValueError("broken")), Keeper()
    emitter = Emitter([failing, keeper])
    with caplog.at_level(logging.WARNING, logger="aitune.events"):
        for event in EVENTS:
            emitter.emit(event)
    assert (failing.calls, keeper.events) == (1, EVENTS)
    assert "broken" in caplog.text
    assert "dropped" in caplog.text


def test_ctrl_c_in_a_listener_is_not_swallowed() -> None:
    with pytest.raises(KeyboardInterrupt):
        Emitter([Failing(KeyboardInterrupt())]).emit(EVENTS[0])


def test_the_given_list_of_listeners_is_not_changed() -> None:
    listeners = [Failing(ValueError("broken"))]
    Emitter(listeners).emit(EVENTS[0])
    assert len(listeners) == 1


def test_events_are_frozen() -> None:
    with pytest.raises(AttributeError):
        EVENTS[1].batch_size = 3  # type: ignore[attr-defined]

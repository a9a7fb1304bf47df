from __future__ import annotations

import signal
import threading
import time

import pytest

from tidegate.cli.signals import stopping
from tidegate.cli.watching import Watched
from tidegate.core.watermark import StreamId
from tidegate.observe.logs import LoggedProgress


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_at_once(number: signal.Signals) -> None:
    with stopping(gently=False) as stop:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        assert stop.wanted
        with pytest.raises(KeyboardInterrupt):
            stop.check()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_gently_the_first_signal_waits_for_a_safe_point_and_the_second_does_not(
    number: signal.Signals,
) -> None:
    with stopping(gently=True) as stop:
        stop.check()
        signal.raise_signal(number)
        assert stop.wanted
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


def test_a_sleep_ends_when_somebody_wants_to_stop() -> None:
    began = time.monotonic()
    with stopping(gently=True) as stop:
        threading.Timer(0.1, signal.raise_signal, [signal.SIGTERM]).start()
        assert stop.wait(3600)
    assert time.monotonic() - began < 600


def test_signals_are_given_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with stopping(gently=True):
        pass
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_table_that_only_waits_stops_where_it_says_so() -> None:
    with stopping(gently=True) as stop:
        watched = Watched(stop, LoggedProgress())
        watched.note(StreamId("shop", "orders"), "no task has been at work for 30 s")
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            watched.note(StreamId("shop", "orders"), "no task has been at work for 90 s")

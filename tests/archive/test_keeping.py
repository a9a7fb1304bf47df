"""What is on the way to its place while the next is packed."""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from functools import partial

import pytest

from tidegate.archive.keeping import MOST, Keeping


def test_a_thing_may_wait_for_those_that_came_before_it() -> None:
    with Keeping() as keeping:
        first = [keeping.begin(partial(abs, number)) for number in range(MOST)]
        total = keeping.begin(lambda: sum(future.result() for future in first))
    assert total.result() == sum(range(MOST))


def test_only_so_much_is_on_the_way_at_once() -> None:
    go_on = threading.Event()
    with Keeping() as keeping:
        for _ in range(MOST):
            keeping.begin(lambda: go_on.wait(60))
        one_more = threading.Thread(target=lambda: keeping.begin(lambda: None))
        one_more.start()
        one_more.join(0.05)
        assert one_more.is_alive()
        go_on.set()
        one_more.join()


def test_what_a_thing_needs_is_closed_whatever_became_of_it() -> None:
    closed: list[str] = []

    def needs(name: str) -> ExitStack:
        stack = ExitStack()
        stack.callback(closed.append, name)
        return stack

    def fails() -> None:
        raise OSError("no room")

    with Keeping() as keeping:
        failed = keeping.begin(fails, needs("failed"))
        keeping.begin(lambda: None, needs("done"))
    with pytest.raises(OSError, match="no room"):
        failed.result()
    with suppress(KeyboardInterrupt), Keeping() as keeping:
        keeping.begin(lambda: None, needs("interrupted"))
        raise KeyboardInterrupt
    assert sorted(closed) == ["done", "failed", "interrupted"]

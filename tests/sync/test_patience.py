from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tidegate.core.deadlines import NEVER, Deadline
from tidegate.core.errors import Interrupted
from tidegate.sync.patience import Patience

NOON = datetime(2025, 8, 1, 12, tzinfo=UTC)


class Waiting:
    def __init__(self, deadline: Deadline = NEVER) -> None:
        self.at = 0.0
        self.said: list[tuple[float, str]] = []
        self.patience = Patience(
            lambda text: self.said.append((self.at, text)), deadline, "shop/orders", lambda: self.at
        )

    def look(self, seconds: float, tasks: int = 0) -> None:
        self.at = seconds
        self.patience.look(tasks, NOON + timedelta(seconds=seconds))


def test_it_is_said_at_once_a_minute_that_no_task_is_at_work() -> None:
    waiting = Waiting()
    for second in range(200):
        waiting.look(second)
    assert [at for at, _ in waiting.said] == [30, 90, 150]
    assert "no task has been at work for 30 s" in waiting.said[0][1]


def test_a_task_at_work_begins_the_count_anew() -> None:
    waiting = Waiting(Deadline(NOON))
    for second in range(200):
        waiting.look(second, tasks=second % 2)
    assert waiting.said == []


def test_nobody_waits_beyond_the_time_allowed() -> None:
    waiting = Waiting(Deadline(NOON + timedelta(seconds=10)))
    for second in range(10):
        waiting.look(second)
    with pytest.raises(Interrupted, match="waited 10 s for a free executor of Spark"):
        waiting.look(10)


def test_an_answer_that_is_on_its_way_at_the_deadline_still_counts() -> None:
    waiting = Waiting(Deadline(NOON))
    waiting.look(0, tasks=2)
    waiting.look(1)
    waiting.look(2)
    with pytest.raises(Interrupted):
        waiting.look(3)

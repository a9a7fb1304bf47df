"""Waiting for Spark to take up a task: without end, unless somebody counts the time, and says so."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import dataclass
from datetime import datetime

from tidegate.core.deadlines import Deadline
from tidegate.spark.running import Answer, RunningJob

_FIRST_WORD, _LONGEST_SILENCE = 30.0, 60.0
"""Seconds without a task at work, after which that is said for the first time, and at least once."""
_GRACE = 2.0
"""Seconds that a task may take to be seen, or an answer to arrive after the last of them."""
_LOOK = 0.5


@dataclass
class Patience:
    """Says now and then that no task is at work, and ends the waiting when the time allowed is over.

    While one is at work that is not needed: tasks stop by themselves at the end of a chunk.
    """

    tell: Callable[[str], None]
    deadline: Deadline
    where: str
    seconds: Callable[[], float] = time.monotonic
    _since: float | None = None
    _next_word: float = _FIRST_WORD

    def look(self, tasks: int, now: datetime) -> None:
        """So many tasks are at work. Raises `Interrupted` if nobody may wait any longer for the first."""
        if tasks:
            self._since, self._next_word = None, _FIRST_WORD
            return
        at = self.seconds()
        self._since = at if self._since is None else self._since
        idle = at - self._since
        if idle >= _GRACE:
            stopped = f"while it waited {idle:.0f} s for a free executor of Spark"
            self.deadline.demand(now, where=self.where, stopped=stopped)
        if idle >= self._next_word:
            self._next_word = idle + _LONGEST_SILENCE
            self.tell(
                f"no task has been at work for {idle:.0f} s: Spark has no free executor, or is still starting"
            )

    def wait(self, running: RunningJob[Answer], clock: Callable[[], datetime]) -> Answer:
        """The answer of a job, if nothing else is to be done meanwhile."""
        while not wait([running.answer], _LOOK).done:
            self.look(running.tasks, clock())
        return running.answer.result()

"""Cutting a window into chunks by row count: one index jump for each, whatever the keys.

To jump over all of a large window takes a fifth of the time that reading it takes, and only one core. So no
more is cut beforehand than keeps the first tasks busy; the rest is cut while they read.
"""

from __future__ import annotations

from tidegate.core.errors import TidegateError
from tidegate.core.positions import Position
from tidegate.core.watermark import Round, Run
from tidegate.core.windows import Window
from tidegate.sources.contract import Source
from tidegate.sync.job import TableJob

CHUNKS_PER_ROUND = 256
"""How much of a window is cut, and remembered in the state, at one time."""

CHUNKS_PER_TASK = 6
"""How much is cut for each task before the first of them is read."""


class Cutter:
    """Cuts what no round of a run holds yet. What it has cut ahead is remembered nowhere until it is a round:
    if that is lost, it is cut again."""

    def __init__(self, source: Source, job: TableJob, window: Window) -> None:
        self._source = source
        self._job = job
        self._window = window
        self._cuts: list[Position] = []
        self._ended = not job.order or job.settings.one_chunk or window.empty
        self._failed = False

    @classmethod
    def of(cls, source: Source, job: TableJob, run: Run) -> Cutter:
        """Of what comes after the round that is under way, if there is one."""
        if run.round is None or run.round.finished:
            return cls(source, job, Window(run.progress, run.window.high))
        cutter = cls(source, job, Window(run.round.window.high, run.window.high))
        cutter._ended = cutter._ended or run.round.window.high == run.window.high
        return cutter

    def ahead(self) -> bool:
        """Cut once more, while something else is under way. False: there is nothing to do for now.

        What goes wrong here goes wrong again when the cut is needed, and nothing is under way.
        """
        if self._ended or self._failed or len(self._cuts) >= CHUNKS_PER_ROUND:
            return False
        try:
            self._cut()
        except TidegateError:
            self._failed = True
        return True

    def round(self, least: int) -> Round:
        """The next round: all that is cut, and at least so many chunks if the window has them."""
        while not self._ended and len(self._cuts) < min(least, CHUNKS_PER_ROUND):
            self._cut()
        cuts, low = self._cuts, self._window.low
        if self._ended:
            return Round(self._window, tuple(cuts))
        self._cuts, self._window = [], Window(cuts[-1], self._window.high)
        return Round(Window(low, cuts[-1]), tuple(cuts[:-1]))

    def _cut(self) -> None:
        low = self._cuts[-1] if self._cuts else self._window.low
        left = Window(low, self._window.high)
        position = self._source.nth(self._job.relation, self._job.order, left, self._job.settings.batch_size)
        if position is None or position == self._window.high:
            self._ended = True
        else:
            self._cuts.append(position)


def cut_round(source: Source, job: TableJob, window: Window) -> Round:
    """As much of a window as a round can hold."""
    return Cutter(source, job, window).round(CHUNKS_PER_ROUND)

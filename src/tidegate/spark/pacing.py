"""Mercy for the source, inside a task: a share of what it bears, and pauses when it struggles.

Everything happens between chunks. A read that is slowed down would keep its snapshot open for longer, which
costs a database more than the read itself; a pause between two reads costs it nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median

from tidegate.core.deadlines import Deadline
from tidegate.core.errors import TidegateError
from tidegate.sources.strain import Pulse, Strain

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0
_CHUNKS_TO_KNOW = 4
"""How many chunks make a median that means something."""
_SHORTEST = 0.05
"""Seconds of a chunk below which its time says more about us than about the source."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What one task must heed: its own share of the limits of a run."""

    rows_per_second: float | None = None
    max_running: int | None = None
    max_lag: float | None = None
    slow_down_at: float | None = None
    """How many times the median a chunk's time per row may be before the source counts as struggling."""
    max_pause: float = 300.0
    """Seconds after which a chunk is begun all the same: a run must end."""


NO_HURRY = Pace()


@dataclass
class Pacer:
    """Keeps one task to its pace."""

    pace: Pace
    pulse: Pulse | None
    deadline: Deadline
    clock: Callable[[], datetime]
    sleep: Callable[[float], None] = time.sleep
    notes: list[str] = field(default_factory=list)
    """What a person should know; taken by whoever passes it on."""
    _times: list[float] = field(default_factory=list)
    _began: datetime | None = None

    def before_chunk(self) -> None:
        """Wait while the source works harder than it should."""
        waited, pause = 0.0, _FIRST_PAUSE
        reason = first = self._reason()
        while reason and waited < self.pace.max_pause and not self._over():
            waited += self._rest(min(pause, self.pace.max_pause - waited))
            pause = min(2 * pause, _LONGEST_PAUSE)
            reason = self._reason()
        if first:
            went_on = f", and went on all the same: {reason}" if reason and not self._over() else ""
            self.notes.append(f"paused {waited:.1f} s for the source: {first}{went_on}")
        self._began = self.clock()

    def after_chunk(self, rows: int) -> None:
        """Let the time pass that so many rows may take, and more if they took longer than usual."""
        spent = (self.clock() - self._began).total_seconds() if self._began else 0.0
        if self.pace.rows_per_second:
            self._rest(rows / self.pace.rows_per_second - spent)
        self._rest(self._excess(rows, spent))

    def _reason(self) -> str | None:
        if self.pulse is None or (self.pace.max_running is None and self.pace.max_lag is None):
            return None
        try:
            strain = self.pulse.strain()
        except TidegateError:
            return (
                None  # a source that cannot be asked is read as before; if it is gone, the read will say so
            )
        return self._too_much(strain)

    def _too_much(self, strain: Strain) -> str | None:
        most, longest = self.pace.max_running, self.pace.max_lag
        if most is not None and strain.running is not None and strain.running > most:
            return f"{strain.running} statements are running, more than {most}"
        if longest is not None and strain.lag is not None and strain.lag > longest:
            return f"a replica is {strain.lag:.0f} s behind, more than {longest:g} s"
        return None

    def _excess(self, rows: int, spent: float) -> float:
        """Seconds by which a chunk took longer than the median chunk would have, if it was much longer."""
        factor = self.pace.slow_down_at
        if factor is None or rows <= 0 or spent < _SHORTEST:
            return 0.0
        known, per_row = self._times, spent / rows
        usual = median(known) if len(known) >= _CHUNKS_TO_KNOW else None
        known.append(per_row)
        if usual is None or per_row <= factor * usual:
            return 0.0
        excess = min(spent - usual * rows, self.pace.max_pause)
        self.notes.append(
            f"paused {excess:.1f} s for the source: a chunk took {per_row / usual:.1f} times as long as usual"
        )
        return excess

    def _rest(self, seconds: float) -> float:
        seconds = min(seconds, self.deadline.left(self.clock()))
        if seconds > 0:
            self.sleep(seconds)
        return max(0.0, seconds)

    def _over(self) -> bool:
        return self.deadline.passed(self.clock())

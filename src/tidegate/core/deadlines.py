"""Until when a run may work."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tidegate.core.errors import Interrupted


@dataclass(frozen=True, slots=True)
class Deadline:
    at: datetime | None = None
    """None: there is all the time in the world."""

    def passed(self, now: datetime) -> bool:
        return self.at is not None and now >= self.at

    def demand(self, now: datetime, *, where: str, stopped: str) -> None:
        """Raise `Interrupted` once it has passed. `stopped` says at which safe point."""
        if self.passed(now):
            raise Interrupted(
                f"the time allowed was used up; the run stopped {stopped}",
                where=where,
                hint="run it again to go on, or raise timeout_minutes",
            )


NEVER = Deadline()

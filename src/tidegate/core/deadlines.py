"""Until when a run may work."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tidegate.core.errors import Interrupted


@dataclass(frozen=True, slots=True)
class Deadline:
    at: datetime | None = None
    """None: there is all the time in the world."""
    reason: str = "the time allowed was used up"
    hint: str = "run it again to go on, or raise timeout_minutes"

    def passed(self, now: datetime) -> bool:
        return self.at is not None and now >= self.at

    def left(self, now: datetime) -> float:
        """Seconds until then."""
        return float("inf") if self.at is None else (self.at - now).total_seconds()

    def demand(self, now: datetime, *, where: str, stopped: str) -> None:
        """Raise `Interrupted` once it has passed. `stopped` says at which safe point."""
        if self.passed(now):
            raise Interrupted(f"{self.reason}; the run stopped {stopped}", where=where, hint=self.hint)

    def or_earlier(self, other: Deadline) -> Deadline:
        if self.at is None or (other.at is not None and other.at < self.at):
            return other
        return self


NEVER = Deadline()

"""A lease: the right to move a stream.

At most one holder at a time. The fencing number grows with every lease of a stream, and the nonce tells
two leases apart even when everything else is equal, so that a holder can recognise its own lease after
the answer to a write was lost.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any


@dataclass(frozen=True, slots=True)
class Holder:
    """A process, named so exactly that another one on the same machine can tell whether it still lives."""

    host: str
    boot_id: str
    pid_namespace: str
    pid: int
    process_start: str
    command: str

    def __str__(self) -> str:
        return f"{self.command} (process {self.pid} on {self.host})"


@dataclass(frozen=True, slots=True)
class Lease:
    holder: Holder
    fence: int
    nonce: str
    acquired_at: datetime
    expires_at: datetime

    def expired(self, now: datetime) -> bool:
        return now >= self.expires_at

    def renewed(self, now: datetime, ttl: timedelta) -> Lease:
        return replace(self, expires_at=now + ttl)

    def same(self, other: Lease | None) -> bool:
        """Whether `other` is this lease, however often it was renewed."""
        return other is not None and (self.fence, self.nonce) == (other.fence, other.nonce)

    def to_json(self) -> dict[str, Any]:
        return {
            "holder": asdict(self.holder),
            "fence": self.fence,
            "nonce": self.nonce,
            "acquired_at": self.acquired_at.isoformat(),
            "expires_at": self.expires_at.isoformat(),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Lease:
        return cls(
            holder=Holder(**data["holder"]),
            fence=data["fence"],
            nonce=data["nonce"],
            acquired_at=datetime.fromisoformat(data["acquired_at"]),
            expires_at=datetime.fromisoformat(data["expires_at"]),
        )

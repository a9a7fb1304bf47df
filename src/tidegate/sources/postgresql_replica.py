"""Standbys of PostgreSQL, followed by way of their primary."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from tidegate.core.ceiling import OpenTransaction
from tidegate.core.errors import SourceError
from tidegate.sources.ceiling import CannotSee

if TYPE_CHECKING:
    from tidegate.sources.postgresql import PostgreSQL

_SAME_SYSTEM = "SELECT system_identifier FROM pg_control_system()"
_WRITTEN = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"
"""Where the log ends, not where it is on disk: without synchronous_commit a transaction ends before that."""
_REPLAYED = "SELECT coalesce(pg_wal_lsn_diff(pg_last_wal_replay_lsn(), '0/0')::bigint, 0)"
_PAGE = 8192
_PAGE_HEADER = 40
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Replicated:
    """Watches the primary's transactions, and waits until the standby has replayed what they left."""

    standby: PostgreSQL
    primary: PostgreSQL

    def clock(self) -> datetime:
        return self.primary.server_observer.clock()

    def blindness(self) -> CannotSee | None:
        if self._is_another_system:
            return CannotSee(
                "the server named as primary holds other data than this standby", "correct `ceiling.primary`"
            )
        return self.primary.server_observer.blindness()

    def transactions(self, ignore: Collection[str]) -> tuple[OpenTransaction, ...]:
        return self.primary.server_observer.transactions(ignore)

    def continues(self, gone: str, listed: OpenTransaction) -> bool:
        return self.primary.server_observer.continues(gone, listed)

    def catch_up(self, patience: timedelta) -> CannotSee | None:
        [(goal,)] = self.primary.rows(_WRITTEN)
        deadline = time.monotonic() + patience.total_seconds()
        while not self._has_replayed(int(goal)):
            if time.monotonic() > deadline:
                return CannotSee(
                    f"the standby was not up to date within {patience.total_seconds():g} s",
                    "raise `ceiling.max_wait`, or look why it lags",
                )
            time.sleep(_POLL_SECONDS)
        return None

    def _has_replayed(self, goal: int) -> bool:
        [(reached,)] = self.standby.rows(_REPLAYED)
        # The end of the log is told with the header of a page that nothing has been written to yet.
        at_page_end = reached % _PAGE == 0 and goal - reached <= _PAGE_HEADER
        return bool(reached >= goal or at_page_end)

    @cached_property
    def _is_another_system(self) -> bool:
        try:
            return self.standby.rows(_SAME_SYSTEM) != self.primary.rows(_SAME_SYSTEM)
        except SourceError:  # some hosts do not let users ask; then the name is all there is to go by
            return False

"""Replicas of MySQL and MariaDB: recognised, and followed by way of their primary."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from tidegate.core.ceiling import OpenTransaction
from tidegate.core.errors import SourceError
from tidegate.sources.ceiling import CannotSee
from tidegate.sources.mysql_session import literal

if TYPE_CHECKING:
    from tidegate.sources.mysql import MySQL

_REPLICA = "this server is a replica, and does not show the transactions of its primary"
_ONE_OF_MANY = "this server is one of several that are written to, and shows only its own transactions"
_APPLIERS = (
    "SELECT 1 FROM information_schema.processlist "
    "WHERE user = 'system user' AND command NOT IN ('Daemon', 'Sleep') LIMIT 1"
)
_RUNNING = ("Slave_SQL_Running", "Replica_SQL_Running")


def why_not_all_writes_are_here(server: MySQL) -> str | None:
    """Why rows can appear on this server that none of its own transactions has written."""
    settings = server.settings
    if settings.get("wsrep_on") == "ON" or settings.get("group_replication_single_primary_mode") == "OFF":
        return _ONE_OF_MANY
    if settings.get("innodb_read_only") == "ON":
        return _REPLICA
    return _REPLICA if _applies_writes(server) else None


def _applies_writes(server: MySQL) -> bool:
    """A former primary may still say where it once replicated from, so something has to be running."""
    read_only = server.settings.get("read_only") == "ON"
    status = _status(server)
    if status is None:
        return read_only or bool(server.rows(_APPLIERS))
    running = any(row.get(name) == "Yes" for row in status for name in _RUNNING)
    return running or (read_only and bool(status))


def _status(server: MySQL) -> list[dict[str, object]] | None:
    """None: this user may not ask."""
    if server.mariadb:
        return server.named_rows("SHOW ALL SLAVES STATUS")
    try:
        return server.named_rows("SHOW REPLICA STATUS")
    except SourceError:  # older servers do not know the word
        return server.named_rows("SHOW SLAVE STATUS")


@dataclass(frozen=True)
class Replicated:
    """Watches the primary's transactions, and waits until the replica has what they left."""

    replica: MySQL
    primary: MySQL

    def clock(self) -> datetime:
        return self.primary.server_observer.clock()

    def blindness(self) -> CannotSee | None:
        return self.primary.server_observer.blindness()

    def transactions(self, ignore: Collection[str]) -> tuple[OpenTransaction, ...]:
        return self.primary.server_observer.transactions(ignore)

    def continues(self, gone: str, listed: OpenTransaction) -> bool:
        return self.primary.server_observer.continues(gone, listed)

    def catch_up(self, patience: timedelta) -> CannotSee | None:
        reached, wait = (
            ("SELECT @@GLOBAL.gtid_binlog_pos", "SELECT MASTER_GTID_WAIT({}, {})")
            if self.primary.mariadb
            else ("SELECT @@GLOBAL.gtid_executed", "SELECT WAIT_FOR_EXECUTED_GTID_SET({}, {})")
        )
        [(position,)] = self.primary.rows(reached)
        if not position:
            reason = "the primary keeps no binary log with GTIDs to follow"
            return CannotSee(reason, "turn on its binary log and GTIDs")
        [(answer,)] = self.replica.rows(wait.format(literal(str(position)), patience.total_seconds()))
        if answer == "0":
            return None
        return CannotSee(
            f"the replica was not up to date within {patience.total_seconds():g} s",
            "raise `ceiling.max_wait`, or look why it lags",
        )

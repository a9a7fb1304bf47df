"""How hard a source is working, asked in one cheap question at a chunk's boundary. Travels to executors."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tidegate.reach.login import Login

if TYPE_CHECKING:
    from tidegate.sources.mysql_session import Session


@dataclass(frozen=True, slots=True)
class Strain:
    running: int | None = None
    """Statements that run this moment, ours among them; None: this user may not know."""
    lag: float | None = None
    """Seconds that a replica is behind: this server, or one that follows it. None: there is none."""


class Pulse(Protocol):
    """Can be pickled; connects when it is asked, and closes afterwards."""

    def strain(self) -> Strain: ...


@dataclass(frozen=True)
class MySQLPulse:
    login: Login

    def strain(self) -> Strain:
        from tidegate.sources.mysql_session import connect, errors, run

        with errors(self.login), closing(connect(self.login)) as session:
            [(_, running)] = run(session, "SHOW GLOBAL STATUS LIKE 'Threads_running'")
            return Strain(int(running), _replica_lag(session))


def _replica_lag(session: Session) -> float | None:
    """Of this server, if it is a replica that is following, and this user may know."""
    import pymysql
    from pymysql.cursors import DictCursor

    with session.cursor(DictCursor) as cursor:
        for statement in ("SHOW REPLICA STATUS", "SHOW SLAVE STATUS"):
            try:
                cursor.execute(statement)
            except pymysql.err.MySQLError:  # an older server, or one that does not tell this user
                continue
            row = cursor.fetchone() or {}
            seconds = row.get("Seconds_Behind_Source", row.get("Seconds_Behind_Master"))
            return None if seconds is None else float(seconds)
    return None


_POSTGRESQL = """
SELECT (SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND backend_type = 'client backend'),
       CASE WHEN pg_is_in_recovery()
            THEN CASE WHEN pg_last_wal_receive_lsn() = pg_last_wal_replay_lsn() THEN 0
                      ELSE EXTRACT(EPOCH FROM clock_timestamp() - pg_last_xact_replay_timestamp()) END
            ELSE (SELECT EXTRACT(EPOCH FROM max(replay_lag)) FROM pg_stat_replication) END
"""


@dataclass(frozen=True)
class PostgreSQLPulse:
    login: Login

    def strain(self) -> Strain:
        from tidegate.sources.postgresql_session import connect, errors, run

        with errors(self.login), closing(connect(self.login)) as session:
            [(running, lag)] = run(session, _POSTGRESQL)
            return Strain(int(running), None if lag is None else float(lag))

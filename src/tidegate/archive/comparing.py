"""All ways, really run: an UPDATE for every file, by itself or many to a transaction, and one for a window.

On generated files and a scratch schema of the configured database, which is dropped at the end. All of them
pack the same files with the same code; what differs is how they remember that they did. How much that is
depends on how durable the server is, so that is told as well.
"""

from __future__ import annotations

import random
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from tidegate.archive.config import ArchiveConfig
from tidegate.archive.contract import Marks
from tidegate.archive.cycle import Cycle
from tidegate.archive.library import Unwatched, open_tools
from tidegate.archive.mark import Mark, MarkTable, connect
from tidegate.sources.postgresql_session import errors

_PAGE = 1_000
_FIRST = 100
"""Files that are packed before anything is measured: what a process does for the first time takes longer."""
_PROMISES = ("fsync", "full_page_writes", "synchronous_commit")
_BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
_APART = timedelta(seconds=1)
_SMALLEST, _LARGEST = 256, 4_096


@dataclass(frozen=True)
class Way:
    """One way of remembering, and what it cost."""

    name: str
    seconds: float
    files: int
    remembering: float
    """Seconds that went into saying what is archived."""
    updates: int
    wal_bytes: int

    def to_json(self) -> dict[str, Any]:
        return {
            "way": self.name,
            "seconds": self.seconds,
            "files": self.files,
            "files_per_second": self.files / self.seconds if self.seconds else 0.0,
            "seconds_remembering": self.remembering,
            "updates": self.updates,
            "wal_bytes": self.wal_bytes,
        }


@dataclass(frozen=True)
class Comparison:
    per_record: Way
    """An UPDATE for each file, committed by itself."""
    per_batch: Way
    """An UPDATE for each file, `commit_every` of them to a transaction."""
    watermark: Way
    commit_every: int
    server: dict[str, str]
    """What the server promises at a commit."""

    def times_faster(self, than: Way) -> float:
        return than.seconds / self.watermark.seconds

    def times_less_wal(self, than: Way) -> float:
        return than.wal_bytes / max(1, self.watermark.wal_bytes)

    def to_json(self) -> dict[str, Any]:
        return {
            "per_record": self._told(self.per_record),
            "per_batch": self._told(self.per_batch),
            "watermark": self.watermark.to_json(),
            "commit_every": self.commit_every,
            "server": self.server,
        }

    def _told(self, way: Way) -> dict[str, Any]:
        ratios = {"times_faster": self.times_faster(way), "times_less_wal": self.times_less_wal(way)}
        return {**way.to_json(), **ratios}


def compare(config: ArchiveConfig, records: int, commit_every: int = 1_000) -> Comparison:
    with (
        errors(config.files_login, grants="`GRANT CREATE` on the database"),
        tempfile.TemporaryDirectory(prefix="tidegate-compare-") as folder,
        _scratch(config) as (session, schema),
    ):
        files = _files(Path(folder) / "files", records)
        for table in ("per_record", "per_batch", "watermark"):
            _fill(session, schema, table, files)
        _fill(session, schema, "first", files[:_FIRST])
        # It is created once in a lifetime, which is nothing that a window costs.
        mark = MarkTable(config.files_login, schema)
        mark.begin(Mark(_BEGIN - timedelta(microseconds=1), config.database.lag_days))
        one = _Run(config, session, schema, Path(folder))
        one.warm_up("first")
        session.execute("CHECKPOINT" if _may_checkpoint(session) else "SELECT 1")
        return Comparison(
            per_record=one.way("per_record", partial(one.updating, commit_every=1)),
            per_batch=one.way("per_batch", partial(one.updating, commit_every=commit_every)),
            watermark=one.way("watermark", one.watermark),
            commit_every=commit_every,
            server=one.promises(),
        )


@dataclass(frozen=True)
class _Run:
    config: ArchiveConfig
    session: psycopg.Connection[Any]
    schema: str
    folder: Path

    def warm_up(self, name: str) -> None:
        self._packed(name, _InMemory())

    def way(self, name: str, work: Callable[[str], tuple[int, float]]) -> Way:
        """One way, on the table and with the folder of its name."""
        wal, updates = self._wal(), self._updates()
        began = time.monotonic()
        files, remembering = work(name)
        seconds = time.monotonic() - began
        # The statistics of a session that has ended come a moment later.
        self._settled()
        return Way(name, seconds, files, remembering, self._updates() - updates, self._wal() - wal)

    def watermark(self, name: str) -> tuple[int, float]:
        mark = _Timed(MarkTable(self.config.files_login, self.schema))
        return self._packed(name, mark), mark.seconds

    def updating(self, name: str, *, commit_every: int) -> tuple[int, float]:
        """Pack, and then say so of each file, by pages of those that are not archived yet."""
        files = self._packed(name, _InMemory())
        began = time.monotonic()
        table = sql.Identifier(self.schema, name)
        select = sql.SQL("SELECT uid FROM {} WHERE NOT archived ORDER BY created_at LIMIT {}")
        update = sql.SQL("UPDATE {} SET archived = true WHERE uid = %s").format(table)
        while rows := self.session.execute(select.format(table, _PAGE)).fetchall():
            for begin in range(0, len(rows), commit_every):
                self._update(update, rows[begin : begin + commit_every])
        return files, time.monotonic() - began

    def _update(self, update: sql.Composed, rows: list[Any]) -> None:
        """In one transaction; a statement that has one to itself needs no more than one round trip."""
        if len(rows) == 1:
            self.session.execute(update, rows[0], prepare=True)
            return
        with self.session.transaction(), self.session.cursor() as cursor:
            cursor.executemany(update, rows)

    def promises(self) -> dict[str, str]:
        rows = self.session.execute(
            "SELECT name, setting FROM pg_settings WHERE name = ANY(%s) ORDER BY name", [list(_PROMISES)]
        )
        return dict(rows.fetchall())

    def _packed(self, table: str, mark: Marks) -> int:
        packer = {"output_dir": str(self.folder / table), "engine": "process"}
        config = self.config.model_copy(
            update={
                "database": self.config.database.model_copy(
                    update={
                        "table_name": f"{self.schema}.{table}",
                        "uid_column": "uid",
                        "created_at_column": "created_at",
                        "location_column": "file_location",
                    }
                ),
                "packer": self.config.packer.model_copy(update=packer),
                "watermark": self.config.watermark.model_copy(update={"default_archived_until": None}),
            }
        )
        with open_tools(config, command="tidegate archive compare") as tools:
            tools.mark = mark
            return Cycle(tools, Unwatched()).run().files

    def _wal(self) -> int:
        row = self.session.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn").fetchone()
        return int(row[0]) if row else 0

    def _updates(self) -> int:
        self.session.execute("SELECT pg_stat_clear_snapshot()")
        row = self.session.execute(
            "SELECT coalesce(sum(n_tup_upd), 0) FROM pg_stat_user_tables WHERE schemaname = %s", [self.schema]
        ).fetchone()
        return int(row[0]) if row else 0

    def _settled(self) -> None:
        last, deadline = -1, time.monotonic() + 10
        while time.monotonic() < deadline and (now := self._updates()) != last:
            last = now
            time.sleep(1.1)


@dataclass
class _Timed:
    """A mark, and how long it took to move it."""

    mark: MarkTable
    seconds: float = 0.0

    def read(self) -> Mark | None:
        return self.mark.read()

    def begin(self, mark: Mark) -> Mark:
        return self.mark.begin(mark)

    def move(self, before: datetime, after: datetime) -> None:
        began = time.monotonic()
        self.mark.move(before, after)
        self.seconds += time.monotonic() - began


@dataclass
class _InMemory:
    """A mark in no database, for the way that remembers elsewhere."""

    mark: Mark | None = None

    def read(self) -> Mark | None:
        return self.mark

    def begin(self, mark: Mark) -> Mark:
        self.mark = mark
        return mark

    def move(self, before: datetime, after: datetime) -> None:
        del before
        if self.mark is not None:
            self.mark = replace(self.mark, archived_until=after)


@contextmanager
def _scratch(config: ArchiveConfig) -> Iterator[tuple[psycopg.Connection[Any], str]]:
    schema = f"tidegate_compare_{secrets.token_hex(4)}"
    with connect(config.files_login) as session:
        session.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        try:
            yield session, schema
        finally:
            session.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))


def _may_checkpoint(session: psycopg.Connection[Any]) -> bool:
    row = session.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone()
    return bool(row and row[0])


def _files(folder: Path, records: int) -> list[tuple[str, str]]:
    noise = random.Random(11)
    folder.mkdir()
    made = []
    for number in range(records):
        path = folder / f"{number % 256:02x}" / str(number)
        path.parent.mkdir(exist_ok=True)
        half = noise.randint(_SMALLEST, _LARGEST) // 2
        path.write_bytes(noise.randbytes(half) + b"tide" * (half // 4))
        made.append((f"file-{number}", str(path)))
    return made


def _fill(session: psycopg.Connection[Any], schema: str, table: str, files: list[tuple[str, str]]) -> None:
    name = sql.Identifier(schema, table)
    session.execute(
        sql.SQL(
            "CREATE TABLE {} (uid text PRIMARY KEY, created_at timestamptz NOT NULL, "
            "file_location text NOT NULL, archived boolean NOT NULL DEFAULT false)"
        ).format(name)
    )
    session.execute(sql.SQL("CREATE INDEX ON {} (created_at)").format(name))
    session.execute(sql.SQL("CREATE INDEX ON {} (created_at) WHERE NOT archived").format(name))
    copy = sql.SQL("COPY {} (uid, created_at, file_location) FROM STDIN").format(name)
    with session.cursor() as cursor, cursor.copy(copy) as rows:
        for number, (uid, location) in enumerate(files):
            rows.write_row((uid, _BEGIN + number * _APART, location))
    session.execute(sql.SQL("ANALYZE {}").format(name))

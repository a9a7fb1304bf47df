"""The hybrid: an `archived` column for those who ask the table, set afterwards and at leisure.

What is set follows from the shards: a row is marked because its file was read back from one. So a late file,
or one that was skipped, is never marked. Rows that others have locked are passed over and come again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import psycopg
from psycopg import sql

from tidegate.archive.contract import Tools, Watching
from tidegate.archive.mark import connect
from tidegate.archive.place import ArchivePlace
from tidegate.archive.records import ProblemKind, WindowFolder, problems_of_all, windows
from tidegate.archive.shard import Shard
from tidegate.archive.streams import PIPELINE
from tidegate.core.errors import DamagedShard, UsageError
from tidegate.core.watermark import StreamId
from tidegate.sources.postgresql_session import errors
from tidegate.state.hold import hold
from tidegate.state.sealed import seal, unseal

_PROGRESS = "_tidegate/marked.json"
_LOCK_TIMEOUT = "2s"
_TABLES = [("r",), ("p",)]
"""Ordinary ones, and those of partitions, as PostgreSQL's catalogue has them."""
_GRANTS = "`GRANT SELECT, UPDATE` on the table"


@dataclass
class Marked:
    rows: int = 0
    """Rows that were set."""
    files: int = 0
    """Files in shards that were gone through."""
    locked: int = 0
    """Rows that others held, so that they are left for the next time."""


@dataclass
class _Progress:
    """Which windows are done, and how many shards of the one that is under way."""

    done: list[str] = field(default_factory=list)
    under_way: str | None = None
    shards: int = 0


_Refused = dict[str, set[bytes]]
"""By uid, where files lie that were left out because another is packed under it."""


def _refused(place: ArchivePlace) -> _Refused:
    found: _Refused = defaultdict(set)
    for problem in problems_of_all(place):
        if problem.kind is ProblemKind.DUPLICATE:
            found[problem.uid].add(problem.location.encode())
    return found


@dataclass
class Marking:
    tools: Tools
    watching: Watching
    batch: int = 1_000

    def run(self) -> Marked:
        """Go through all windows that are not done. One marks at a time."""
        tools = self.tools
        stream = StreamId(PIPELINE, f"{tools.config.database.table_name}, marking")
        with (
            hold(tools.store, stream, holder=tools.holder, clock=tools.clock, nonce=tools.token()) as held,
            errors(tools.config.files_login, tools.config.database.table_name, grants=_GRANTS),
            connect(tools.config.files_login) as session,
        ):
            session.execute("SELECT set_config('lock_timeout', %s, false)", [_LOCK_TIMEOUT])
            self._demand_table(session)
            progress, marked = self._progress(), Marked()
            left = [folder for folder in windows(tools.place) if folder.name not in progress.done]
            refused = _refused(tools.place) if left else {}
            for folder in left:
                self._window(session, folder, progress, marked, refused)
                held.check()
            return marked

    def _window(
        self,
        session: psycopg.Connection[Any],
        folder: WindowFolder,
        progress: _Progress,
        marked: Marked,
        refused: _Refused,
    ) -> None:
        manifest = folder.manifest()
        if progress.under_way != folder.name:
            progress.under_way, progress.shards = folder.name, 0
        locked = 0
        for record in (manifest.shards if manifest else ())[progress.shards :]:
            for rows in self._batches(record.key, refused):
                marked.rows += self._set(session, rows)
                locked += self._left(session, rows)
                marked.files += len(rows["uid"])
            self.watching.check()
            if not locked:
                progress.shards += 1
                self._keep(progress)
        marked.locked += locked
        if not locked:
            progress.done.append(folder.name)
            progress.under_way = None
            self._keep(progress)

    def _batches(self, key: str, refused: _Refused) -> Iterator[dict[str, list[Any]]]:
        source = self.tools.place.open(key)
        if source is None:
            raise DamagedShard("the shard is gone", where=self.tools.place.where(key))
        index = Shard(source).index().select(["uid", "created_at", "location"])
        for begin in range(0, index.num_rows, self.batch):
            rows = index.slice(begin, self.batch).to_pydict()
            others = [(uid, location) for uid in rows["uid"] for location in refused.get(uid, ())]
            rows["refused"], rows["elsewhere"] = [uid for uid, _ in others], [path for _, path in others]
            yield rows

    # --- Rows

    def _demand_table(self, session: psycopg.Connection[Any]) -> None:
        name = self.tools.table.relation.sql
        found = session.execute("SELECT relkind::text FROM pg_class WHERE oid = %s::regclass", [name])
        if found.fetchone() not in _TABLES:
            raise UsageError(
                "it is no table of its own, and has no rows that could be locked and set",
                where=self.tools.config.database.table_name,
                hint="for this command, name the table behind it in a copy of the configuration",
            )

    def _set(self, session: psycopg.Connection[Any], rows: dict[str, list[Any]]) -> int:
        query = (
            "UPDATE {table} AS t SET {flag} = true FROM (SELECT f.tableoid AS part, f.ctid AS place {rows} "
            "FOR UPDATE OF f SKIP LOCKED) AS found WHERE t.tableoid = found.part AND t.ctid = found.place"
        )
        return session.execute(self._filled(query), rows).rowcount

    def _left(self, session: psycopg.Connection[Any], rows: dict[str, list[Any]]) -> int:
        row = session.execute(self._filled("SELECT COUNT(*) {rows}"), rows).fetchone()
        return int(row[0]) if row else 0

    def _filled(self, query: str) -> sql.SQL:
        """Where uids repeat, a row is the one that was packed only if its location says so, too.

        Where they do not, a file may have moved since; but a row that has another date as well is of another
        file, which no shard may hold yet. And a row that leads to another file than the one that was packed
        under its uid is not that one.
        """
        database, table = self.tools.config.database, self.tools.table
        name, column = _sql(table.relation.sql), _sql(table.quote(database.archived_column))
        flag, uid = f"f.{column}", _sql(f"f.{table.quote(database.uid_column)}")
        location = _sql(table.location_as_bytes("f"))
        same = f"{location} = a.location"
        if table.uid_is_key:
            same = f"({same} OR {_sql(table.created_at_as_instant('f'))} = a.created_at)"
        rows = (
            f"FROM {name} f "
            f"JOIN unnest(%(uid)s::text[]::{table.uid_type}[], %(location)s::bytea[], "
            "%(created_at)s::timestamptz[]) AS a(uid, location, created_at) "
            f"ON {uid} = a.uid AND {same} WHERE {flag} IS NOT TRUE AND NOT EXISTS ("
            f"SELECT FROM unnest(%(refused)s::text[]::{table.uid_type}[], %(elsewhere)s::bytea[]) "
            f"AS r(uid, location) WHERE r.uid = {uid} AND r.location = {location})"
        )
        return sql.SQL(query.format(rows=rows, table=name, flag=column))

    # --- Progress

    def _progress(self) -> _Progress:
        data = self.tools.place.get(_PROGRESS)
        return _Progress(**unseal(data, self.tools.place.where(_PROGRESS))) if data else _Progress()

    def _keep(self, progress: _Progress) -> None:
        self.tools.place.put(_PROGRESS, seal(asdict(progress)).encode())


def _sql(text: str) -> str:
    """A piece of SQL in a query with parameters: a name may have a percent sign in it."""
    return text.replace("%", "%%")

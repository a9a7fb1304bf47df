"""Targets in SQL databases: what DuckDB, PostgreSQL and Redshift have in common.

A database offers transactions; `SqlTarget` says what happens in them. The rows of a load and their ledger
entries are one transaction, and the ledger is asked inside it, behind a lock: however often and by however
many a segment is loaded, it lands once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

from tidegate.core.errors import IncompatibleTable, TargetError
from tidegate.core.strategies import WriteMode
from tidegate.core.types import Schema
from tidegate.core.watermark import StreamId
from tidegate.targets.contract import FENCES, LEDGER, StagedSegment, TargetTable
from tidegate.targets.ddl import TableName, TablePlan, action, plan_table, quote, unwidened
from tidegate.targets.ledger import Ledger
from tidegate.targets.loading import Load
from tidegate.targets.session import Database, Session

_ASKED_AT_ONCE = 1_000
"""Values in one question: databases take a bounded number of parameters."""


class SqlTarget:
    """A target in an SQL database. Holds no connection: each operation opens one and closes it."""

    def __init__(self, database: Database, schema: str) -> None:
        self.database = database
        self.schema = schema

    def action(self, table: TargetTable, schema: Schema) -> str:
        dialect = self.database.dialect
        with self.database.reading() as session:
            plan = plan_table(table, schema, session.columns(self._name(table.name)), dialect)
        return action(table, plan, dialect)

    def prepare(self, table: TargetTable, schema: Schema) -> None:
        name = self._name(table.name)
        with self.database.reading() as session:
            plan = plan_table(table, schema, session.columns(name), self.database.dialect)
            if plan.ready and self._known_ledger(session):
                return
        self._change_outside(table, plan)
        with self.database.writing() as session:
            self._ensured_ledger(session)
            session.lock(f"table {name}")
            plan = plan_table(table, schema, session.columns(name), self.database.dialect)
            self._change_table(session, table, plan)

    def load(
        self,
        table: TargetTable,
        segments: Sequence[StagedSegment],
        *,
        generation: int,
        fence: int,
        skip_existing: bool = False,
    ) -> int:
        if not segments:
            return 0
        once = list({item.segment.key: item for item in segments}.values())
        name = self._name(table.name)
        with self.database.writing() as session:
            session.lock(f"stream {table.stream}")
            session.lock(f"table {name}")
            ledger = self._ledger(session)
            ledger.demand_not_fenced(table.stream, fence)
            load = Load(session, self.database.dialect, ledger, table, name, generation)
            match table.mode:
                case WriteMode.APPEND:
                    return load.append_missing(once) if skip_existing else load.append(once)
                case WriteMode.MERGE:
                    return load.merge(once)
                case WriteMode.REPLACE:
                    return load.replace(once)

    def fence_off(self, stream: StreamId, fence: int) -> None:
        with self.database.writing() as session:
            ledger = self._known_ledger(session) or self._ensured_ledger(session)
            session.lock(f"stream {stream}")
            ledger.fence_off(stream, fence)

    def loaded(self, stream: StreamId, generation: int, keys: Sequence[str]) -> frozenset[str]:
        with self.database.reading() as session:
            ledger = self._known_ledger(session)
            return ledger.held(stream, generation, keys) if ledger else frozenset()

    def last_run(self, stream: StreamId) -> int:
        with self.database.reading() as session:
            ledger = self._known_ledger(session)
            return ledger.last_run(stream) if ledger else 0

    def exists(self, name: str) -> bool:
        with self.database.reading() as session:
            return bool(session.columns(self._name(name)))

    def columns(self, name: str) -> tuple[str, ...]:
        with self.database.reading() as session:
            return tuple(column.name for column in session.columns(self._name(name)))

    def count(self, name: str) -> int:
        table = self._name(name)
        with self.database.reading() as session:
            if not session.columns(table):
                raise TargetError("there is no such table", where=name)
            [(count,)] = session.rows(f"SELECT count(*) FROM {session.relation(table)}")
            return int(count)

    def present(self, name: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> int:
        distinct = list(dict.fromkeys(rows))
        with self.database.reading() as session:
            relation = session.relation(self._name(name))
            pages = _pages(distinct, len(columns))
            return sum(self._present(session, relation, columns, page) for page in pages)

    def _present(
        self, session: Session, relation: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]
    ) -> int:
        names, width = cycle(map(quote, columns)), len(columns)
        values = [value for row in rows for value in row]
        asked = [
            self._equal(name, f"${place}", value)
            for place, (name, value) in enumerate(zip(names, values, strict=False), start=1)
        ]
        same = [sql for sql, _ in asked]
        each = (f"({' AND '.join(same[at : at + width])})" for at in range(0, len(same), width))
        either = " OR ".join(each)
        parameters = [value for _, value in asked]
        [(count,)] = session.rows(f"SELECT count(*) FROM {relation} WHERE {either}", parameters)
        return int(count)

    def _equal(self, column: str, place: str, value: object) -> tuple[str, object]:
        """The SQL by which a column has exactly this value, and what is sent at the parameter's place."""
        return f"{column} = {place}", value

    def close(self) -> None:
        """Nothing is held open between operations."""

    def _name(self, text: str) -> TableName:
        name = TableName.parse(text, self.schema)
        longest = self.database.dialect.names.longest
        if max(len(name.name.encode()), len(name.schema.encode())) > longest:
            raise IncompatibleTable(f"the table's name is longer than {longest} bytes", where=text)
        return name

    def _change_outside(self, table: TargetTable, plan: TablePlan) -> None:
        """Do what cannot be done inside of a transaction; for most databases there is nothing of the kind."""

    def _change_table(self, session: Session, table: TargetTable, plan: TablePlan) -> None:
        name, dialect = self._name(table.name), self.database.dialect
        if plan.create:
            session.create_schema(name.schema)
        try:
            for statement in plan.statements(session.relation(name), dialect):
                session.change(statement)
        except TargetError as error:
            if not plan.widen:
                raise
            raise unwidened(table, plan, dialect, error.message) from error

    def _ledger(self, session: Session) -> Ledger:
        loads, fences = (session.relation(TableName(self.schema, name)) for name in (LEDGER, FENCES))
        return Ledger(loads, fences, session, self.database.dialect.words)

    def _known_ledger(self, session: Session) -> Ledger | None:
        return self._ledger(session) if session.columns(TableName(self.schema, LEDGER)) else None

    def _ensured_ledger(self, session: Session) -> Ledger:
        session.lock(f"prepare {self.schema}")
        ledger = self._known_ledger(session)
        if ledger is None:
            session.create_schema(self.schema)
            ledger = self._ledger(session)
            ledger.create()
        return ledger


def _pages(rows: Sequence[tuple[Any, ...]], width: int) -> Iterator[Sequence[tuple[Any, ...]]]:
    size = max(1, _ASKED_AT_ONCE // width)
    for start in range(0, len(rows), size):
        yield rows[start : start + size]

"""Targets in SQL databases: what DuckDB, PostgreSQL and Redshift have in common.

A database offers transactions; `SqlTarget` says what happens in them. The rows of a load and their ledger
entries are one transaction, and the ledger is asked inside it, behind a lock: however often and by however
many a segment is loaded, it lands once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tidegate.core.errors import IncompatibleTable, TargetError
from tidegate.core.strategies import WriteMode
from tidegate.core.types import DataType, Kind, Schema
from tidegate.core.watermark import StreamId
from tidegate.targets.contract import FENCES, LEDGER, StagedSegment, TargetTable
from tidegate.targets.ddl import TableName, TablePlan, action, plan_table, quote, unwidened
from tidegate.targets.ledger import Ledger
from tidegate.targets.loading import Load
from tidegate.targets.session import Database, Session

_ASKED_AT_ONCE = 20_000
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
        table, fold = self._name(name), self.database.dialect.fold
        with self.database.reading() as session:
            kinds = {fold(column.name): column.type for column in session.columns(table)}
            same = [_same(column, place, kinds.get(fold(column))) for place, column in enumerate(columns)]
            there = session.relation(table)
            return sum(_counted(session, there, same, page) for page in pages(distinct, _ASKED_AT_ONCE))

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


def _same(column: str, place: int, kind: DataType | None) -> str:
    """Whether a column has the value that is asked for, where the text of a UUID is one."""
    asked = f"asked.k{place}"
    wanted = f"CAST({asked} AS uuid)" if kind is not None and kind.kind is Kind.UUID else asked
    return f"existing.{quote(column)} = {wanted}"


def _counted(session: Session, there: str, same: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> int:
    """How many rows have one of these combinations. A join looks at a table once, also without an index."""
    width = len(same)
    places = [f"${place}" for place in range(1, len(rows) * width + 1)]
    each = ", ".join(f"({', '.join(places[at : at + width])})" for at in range(0, len(places), width))
    asked = f"(VALUES {each}) AS asked ({', '.join(f'k{place}' for place in range(width))})"
    values = [value for row in rows for value in row]
    [(count,)] = session.rows(
        f"SELECT count(*) FROM {there} AS existing JOIN {asked} ON {' AND '.join(same)}", values
    )
    return int(count)


def pages(rows: Sequence[tuple[Any, ...]], values: int) -> Iterator[Sequence[tuple[Any, ...]]]:
    """The rows, so many that they hold about this number of values at a time."""
    size = max(1, values // max(1, len(rows[0]))) if rows else 1
    for start in range(0, len(rows), size):
        yield rows[start : start + size]

"""Targets in SQL databases: what DuckDB and PostgreSQL have in common.

A database offers transactions; `SqlTarget` says what happens in them. The rows of a load and their ledger
entries are one transaction, and the ledger is asked inside it, behind a lock: however often and by however
many a segment is loaded, it lands once.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.core.errors import IncompatibleTable, TargetError
from tidegate.core.strategies import WriteMode
from tidegate.core.types import Schema
from tidegate.core.watermark import StreamId
from tidegate.targets.contract import LEDGER, StagedSegment, TargetTable
from tidegate.targets.ddl import TableName, TablePlan, plan_table, unwidened
from tidegate.targets.ledger import Ledger
from tidegate.targets.loading import Load
from tidegate.targets.session import Database, Session


class SqlTarget:
    """A target in an SQL database. Holds no connection: each operation opens one and closes it."""

    def __init__(self, database: Database, schema: str) -> None:
        self.database = database
        self.schema = schema

    def action(self, table: TargetTable, schema: Schema) -> str:
        dialect = self.database.dialect
        with self.database.reading() as session:
            plan = plan_table(table, schema, session.columns(self._name(table.name)), dialect)
        deed, preposition = _deed(table)
        steps = plan.words(table.name, dialect)
        return ", ".join([*steps, f"then {deed}"]) if steps else f"{deed} {preposition} {table.name}"

    def prepare(self, table: TargetTable, schema: Schema) -> None:
        name, ledger = self._name(table.name), TableName(self.schema, LEDGER)
        with self.database.reading() as session:
            plan = plan_table(table, schema, session.columns(name), self.database.dialect)
            if plan.ready and session.columns(ledger):
                return
        with self.database.writing() as session:
            session.lock(f"prepare {self.schema}")
            if not session.columns(ledger):
                session.create_schema(self.schema)
                Ledger(session.relation(ledger), session).create()
            session.lock(f"table {name}")
            plan = plan_table(table, schema, session.columns(name), self.database.dialect)
            self._change_table(session, table, plan)

    def load(
        self,
        table: TargetTable,
        segments: Sequence[StagedSegment],
        *,
        generation: int,
        skip_existing: bool = False,
        run: int | None = None,
    ) -> int:
        if not segments and (table.mode is not WriteMode.REPLACE or run is None):
            return 0
        once = list({item.segment.key: item for item in segments}.values())
        name = self._name(table.name)
        with self.database.writing() as session:
            session.lock(f"stream {table.stream}")
            session.lock(f"table {name}")
            ledger = Ledger(session.relation(TableName(self.schema, LEDGER)), session)
            load = Load(session, self.database.dialect, ledger, table, name, generation)
            match table.mode:
                case WriteMode.APPEND:
                    return load.append_missing(once) if skip_existing else load.append(once)
                case WriteMode.MERGE:
                    return load.merge(once)
                case WriteMode.REPLACE:
                    return load.replace(once, run)

    def loaded(self, stream: StreamId, generation: int, keys: Sequence[str]) -> frozenset[str]:
        with self.database.reading() as session:
            ledger = self._ledger(session)
            return ledger.held(stream, generation, keys) if ledger else frozenset()

    def last_run(self, stream: StreamId) -> int:
        with self.database.reading() as session:
            ledger = self._ledger(session)
            return ledger.last_run(stream) if ledger else 0

    def exists(self, name: str) -> bool:
        with self.database.reading() as session:
            return bool(session.columns(self._name(name)))

    def count(self, name: str) -> int:
        table = self._name(name)
        with self.database.reading() as session:
            if not session.columns(table):
                raise TargetError("there is no such table", where=name)
            [(count,)] = session.rows(f"SELECT count(*) FROM {session.relation(table)}")
            return int(count)

    def close(self) -> None:
        """Nothing is held open between operations."""

    def _name(self, text: str) -> TableName:
        name = TableName.parse(text, self.schema)
        longest = self.database.dialect.longest_name
        if max(len(name.name.encode()), len(name.schema.encode())) > longest:
            raise IncompatibleTable(f"the table's name is longer than {longest} bytes", where=text)
        return name

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

    def _ledger(self, session: Session) -> Ledger | None:
        name = TableName(self.schema, LEDGER)
        return Ledger(session.relation(name), session) if session.columns(name) else None


def _deed(table: TargetTable) -> tuple[str, str]:
    """What a load does, and the word that joins it to the table's name."""
    match table.mode:
        case WriteMode.APPEND:
            return "append", "to"
        case WriteMode.MERGE:
            return f"merge by {', '.join(table.key)}", "into"
        case WriteMode.REPLACE:
            return "replace all rows", "of"

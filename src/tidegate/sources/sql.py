"""The driver's side of a source that speaks SQL: one shape of queries, and a port for each database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Protocol

from tidegate.core.ceiling import Ceiling
from tidegate.core.errors import SourceError
from tidegate.core.positions import Position, Value
from tidegate.core.strategies import CeilingSettings, Cursor
from tidegate.core.types import Column, Kind, Schema
from tidegate.core.watermark import Candidate
from tidegate.core.windows import Window
from tidegate.sources import select as custom
from tidegate.sources.ceiling import ClockFace, Freezing, Observer, Patience
from tidegate.sources.contract import Read, Reader, Relation
from tidegate.sources.discovery import SchemaCache, TableName
from tidegate.sources.strain import Pulse

_ORDERED = frozenset(
    {
        Kind.INT8,
        Kind.INT16,
        Kind.INT32,
        Kind.INT64,
        Kind.UINT8,
        Kind.UINT16,
        Kind.UINT32,
        Kind.UINT64,
        Kind.DECIMAL,
    }
)
_NO_POSITION = frozenset({Kind.FLOAT32, Kind.FLOAT64, Kind.JSON})
_UNBOUNDED = Window(None, None)


class Database(Protocol):
    """What differs between databases."""

    dialect: str
    """What the SQL parser calls it."""
    own_schema: str
    """Where a name without a schema is looked up."""

    def rows(self, sql: str) -> list[tuple[Any, ...]]: ...
    def quote(self, name: str) -> str: ...
    def literal(self, value: Value) -> str: ...
    def tables(self) -> list[TableName]: ...
    def views(self) -> list[TableName]: ...
    def table_schemas(self, tables: Sequence[TableName]) -> dict[TableName, Schema]:
        """The schemas of those of the tables and views that there are, in as few queries as can be."""
        ...

    def select_schema(self, select: str) -> Schema: ...
    def unaltered(self, tables: Mapping[TableName, Schema | None]) -> str | None:
        """A condition that fails a statement if one of the tables is no longer what its schema says, or what
        it is at this moment: see `Relation`."""
        ...

    def expression(self, column: Column) -> str:
        """How a column is selected so that `value` can read a position from it."""
        ...

    def value(self, column: Column, raw: Any) -> Value: ...
    def within(self, relation: Relation, columns: tuple[Column, ...], window: Window) -> str:
        """The condition that holds a window."""
        ...

    def in_order(self, relation: Relation, columns: tuple[Column, ...], window: Window) -> tuple[str, ...]:
        """Conditions that follow each other and together hold the window, each in an index's order."""
        ...

    def second_digits(self, relation: Relation, column: Column) -> int:
        """How many digits of a second the column's values have."""
        ...

    def earliest_unfinished(
        self, relation: Relation, columns: tuple[Column, ...], window: Window
    ) -> Value | None:
        """The smallest leading value that a written but uncommitted row of the window may have."""
        ...

    def observer(self, tables: Sequence[TableName]) -> Observer:
        """Of those who write to what these tables and views show."""
        ...

    def id_warnings(self, table: TableName, column: Column, settings: CeilingSettings) -> tuple[str, ...]: ...
    def snapshot(self) -> AbstractContextManager[str | None]: ...
    def reader(self) -> Reader: ...
    def pulse(self) -> Pulse | None: ...
    def close(self) -> None: ...


class SqlSource:
    """A source, by way of its database. Used from one thread."""

    def __init__(self, database: Database, known: SchemaCache | None = None) -> None:
        self._database = database
        self._remembered = known or SchemaCache()
        self._patience = Patience()
        self._read_from: dict[str, tuple[TableName, ...]] = {}
        """The tables and views that relations read, by their SQL."""

    def tables(self) -> list[str]:
        return [self._called(table) for table in self._database.tables()]

    def schema(self, table: str) -> Schema:
        return self._find(table)[1]

    def discover(self, tables: Sequence[str]) -> None:
        """Look at all tables at once that are not known from a short while ago."""
        candidates = [name for table in tables if not self._recall(table) for name in self._spellings(table)]
        if candidates:
            self._remembered.put(self._database.table_schemas(candidates))

    def table(self, table: str, *, filter: str | None = None, fresh: bool = True) -> Relation:
        found, schema = (None if fresh else self._recall(table)) or self._find(table)
        sql = self._relation_of(found)
        self._read_from[sql] = (found,)
        if filter is not None:
            custom.check_condition(filter, self._database.dialect)
        return Relation(table, sql, schema, filter, self._database.unaltered({found: schema}))

    def _relation_of(self, table: TableName) -> str:
        return f"{self.quote(table.schema)}.{self.quote(table.name)}"

    def query(self, name: str, select: str) -> Relation:
        sql = self._bracketed(select)
        # Looked at before its result is described: what changes in between is found, not missed.
        tables = self._read_from[sql] = tuple(self._tables_of(select))
        unaltered = self._database.unaltered(dict.fromkeys(tables))
        return Relation(name, sql, self._database.select_schema(sql), unaltered=unaltered)

    def narrowed(self, relation: Relation, select: str) -> Relation:
        return replace(relation, sql=self._bracketed(select))

    def _bracketed(self, select: str) -> str:
        checked = custom.check(select, self._database.dialect)
        return f"(\n{checked}\n) AS {self.quote('tidegate_query')}"

    def _tables_of(self, select: str) -> list[TableName]:
        names = custom.tables(select, self._database.dialect)
        return [TableName(schema or self._database.own_schema, name) for schema, name in names]

    def null_cursors(self, relation: Relation, cursor: Cursor) -> int:
        columns = [c for c in self.columns(relation, cursor.columns) if c.nullable]
        if not columns:
            return 0
        missing = " OR ".join(f"{self.quote(column.name)} IS NULL" for column in columns)
        return self._count(relation, f"({missing})")

    def freeze(
        self,
        relation: Relation,
        cursor: Cursor,
        settings: CeilingSettings,
        candidates: tuple[Candidate, ...] = (),
        *,
        after: Position | None = None,
    ) -> Ceiling:
        columns = self.columns(relation, cursor.columns)
        tables = self._read_from.get(relation.sql, ())
        freezing = Freezing(
            _Rows(self, relation, columns),
            self._database.observer(tables),
            settings,
            self._patience,
            after,
        )
        if not columns:
            return freezing.by_clock_alone()
        if cursor.timestamp is None:
            return self._freeze_ids(freezing, relation, columns[0], tables, candidates)
        digits = self._database.second_digits(relation, columns[0])
        return freezing.by_clock(ClockFace.of(columns[0], cursor.zone, digits))

    def _freeze_ids(
        self,
        freezing: Freezing,
        relation: Relation,
        column: Column,
        tables: Sequence[TableName],
        candidates: tuple[Candidate, ...],
    ) -> Ceiling:
        if column.type.kind not in _ORDERED:
            raise SourceError(
                f"column `{column.name}` is {column.native or column.type}: its order says nothing about age",
                where=relation.name,
                hint="follow a number that grows, or a timestamp",
            )
        ceiling = freezing.by_id(candidates)
        warned = (self._database.id_warnings(table, column, freezing.settings) for table in tables)
        known = (text for texts in warned for text in texts)
        fallen = self._fallen_back(relation, tables, ceiling, freezing.after)
        return replace(ceiling, warnings=(*ceiling.warnings, *known, *fallen))

    def _fallen_back(
        self, relation: Relation, tables: Sequence[TableName], ceiling: Ceiling, mark: Position | None
    ) -> tuple[str, ...]:
        """A mark was the largest id when it was made. If it is ahead now, ids are given out again behind it.

        Only a whole table tells: rows leave a filter or a SELECT without being deleted. One without rows does
        not: whoever takes the rows out of it may be all there is to it.
        """
        whole = relation.filter is None and [relation.sql] == [self._relation_of(table) for table in tables]
        largest = ceiling.position
        if not whole or mark is None or largest is None or not largest.precedes(mark):
            return ()
        warning = (
            f"the mark, {mark}, is ahead of the largest id, {largest}: rows whose ids are not above the mark "
            "will not be found. If the table was emptied and filled again, begin anew with "
            "`tidegate watermark reset`"
        )
        return (warning,)

    def nth(self, relation: Relation, columns: tuple[str, ...], window: Window, n: int) -> Position | None:
        found = self.columns(relation, columns)
        conditions = self._database.in_order(relation, found, window)
        return self._first(relation, found, conditions, skip=n - 1)

    def count(self, relation: Relation, columns: tuple[str, ...], window: Window) -> int:
        found = self.columns(relation, columns)
        return self._count(relation, self._within(relation, found, window))

    def chunk(
        self,
        relation: Relation,
        columns: tuple[str, ...],
        window: Window,
        *,
        positions: tuple[str, ...],
        order: tuple[str, ...],
        snapshot: str | None = None,
    ) -> Read:
        condition = self._within(relation, self.columns(relation, order), window)
        return Read(
            relation=relation.sql,
            columns=self.columns(relation, columns),
            where=both(condition, relation.filter),
            positions=positions,
            snapshot=snapshot,
            unaltered=relation.unaltered,
            uncut=not order,
        )

    def snapshot(self) -> AbstractContextManager[str | None]:
        return self._database.snapshot()

    def reader(self) -> Reader:
        return self._database.reader()

    def pulse(self) -> Pulse | None:
        return self._database.pulse()

    def quote(self, name: str) -> str:
        return self._database.quote(name)

    def literal(self, value: Value) -> str:
        return self._database.literal(value)

    def close(self) -> None:
        self._database.close()

    # --- names

    def _find(self, table: str) -> tuple[TableName, Schema]:
        """A name is looked up as it stands, and then as `schema.name`."""
        found = self._database.table_schemas(self._spellings(table))
        self._remembered.put(found)
        for candidate in self._spellings(table):
            if candidate in found:
                return candidate, found[candidate]
        raise self._no_such_table(table)

    def _recall(self, table: str) -> tuple[TableName, Schema] | None:
        for candidate in self._spellings(table):
            schema = self._remembered.get(candidate)
            if schema is not None:
                return candidate, schema
        return None

    def _spellings(self, table: str) -> list[TableName]:
        schema, dot, name = table.partition(".")
        own = TableName(self._database.own_schema, table)
        return [own, TableName(schema, name)] if dot and schema and name else [own]

    def _no_such_table(self, table: str) -> SourceError:
        known = [self._called(name) for name in (*self._database.tables(), *self._database.views())]
        return SourceError(f"there is no table `{table}`", hint=_nearest(table, known))

    def _called(self, table: TableName) -> str:
        return table.name if table.schema == self._database.own_schema else f"{table.schema}.{table.name}"

    def columns(self, relation: Relation, names: tuple[str, ...]) -> tuple[Column, ...]:
        known = relation.schema.names
        for name in names:
            if name not in known:
                raise SourceError(
                    f"there is no column `{name}`", where=relation.name, hint=_nearest(name, known)
                )
        return tuple(relation.schema.column(name) for name in names)

    # --- queries

    def _count(self, relation: Relation, condition: str) -> int:
        where = both(condition, relation.filter)
        [(count,)] = self._database.rows(f"SELECT COUNT(*) FROM {relation.sql} WHERE {where}")
        return int(count)

    def _within(self, relation: Relation, columns: tuple[Column, ...], window: Window) -> str:
        for column in columns:
            _demand_position(relation, column)
        return self._known(columns, self._database.within(relation, columns, window))

    def _known(self, columns: tuple[Column, ...], condition: str) -> str:
        """A row that lacks a value of its position is in no window: it would be in some by chance."""
        missing = [f"{self.quote(column.name)} IS NOT NULL" for column in columns if column.nullable]
        return " AND ".join([f"({condition})", *missing]) if missing else condition

    def _first(
        self, relation: Relation, columns: tuple[Column, ...], conditions: tuple[str, ...], *, skip: int
    ) -> Position | None:
        selects = [self._select(relation, columns, condition) for condition in conditions]
        if len(selects) == 1:
            order = ", ".join(self.quote(column.name) for column in columns)
        else:
            order = ", ".join(str(number + 1) for number in range(len(columns)))
        sql = f"{' UNION ALL '.join(selects)} ORDER BY {order} LIMIT 1 OFFSET {skip}"
        return self._position(columns, self._database.rows(sql))

    def largest(
        self, relation: Relation, columns: tuple[Column, ...], bound: Value | None
    ) -> Position | None:
        """The last position in the order of the columns whose leading value is at or below the bound."""
        window = Window(None, Position.of(bound)) if bound is not None else _UNBOUNDED
        condition = self._database.within(relation, columns[:1], window)
        order = ", ".join(f"{self.quote(column.name)} DESC" for column in columns)
        sql = f"{self._select(relation, columns, condition)} ORDER BY {order} LIMIT 1"
        return self._position(columns, self._database.rows(sql))

    def reaches_beyond(self, relation: Relation, column: Column, moment: Value) -> bool:
        condition = self._database.within(relation, (column,), Window(Position.of(moment), None))
        where = both(condition, relation.filter)
        return bool(self._database.rows(f"SELECT 1 FROM {relation.sql} WHERE {where} LIMIT 1"))

    def earliest_unfinished(
        self, relation: Relation, columns: tuple[Column, ...], window: Window
    ) -> Value | None:
        return self._database.earliest_unfinished(relation, columns, window)

    def _select(self, relation: Relation, columns: tuple[Column, ...], condition: str) -> str:
        for column in columns:
            _demand_position(relation, column)
        # Under its own name a converted value would also be what ORDER BY sorts by.
        selected = ", ".join(
            f"{self._database.expression(column)} AS tidegate_position_{number}"
            for number, column in enumerate(columns, start=1)
        )
        where = both(self._known(columns, condition), relation.filter)
        return f"SELECT {selected} FROM {relation.sql} WHERE {where}"

    def _position(self, columns: tuple[Column, ...], rows: list[tuple[Any, ...]]) -> Position | None:
        if not rows:
            return None
        pairs = zip(columns, rows[0], strict=True)
        return Position(tuple(self._database.value(column, raw) for column, raw in pairs))


@dataclass(frozen=True)
class _Rows:
    """The rows of a relation as the search for a ceiling looks at them."""

    source: SqlSource
    relation: Relation
    columns: tuple[Column, ...]

    def largest(self, bound: Value | None) -> Position | None:
        return self.source.largest(self.relation, self.columns, bound)

    def reaches_beyond(self, moment: Value) -> bool:
        return self.source.reaches_beyond(self.relation, self.columns[0], moment)

    def earliest_unfinished(self, window: Window) -> Value | None:
        return self.source.earliest_unfinished(self.relation, self.columns, window)


def both(condition: str, filter_: str | None) -> str:
    """A filter may end in a comment, so its closing bracket stands on a line of its own."""
    return condition if filter_ is None else f"({condition}) AND (\n{filter_}\n)"


def _demand_position(relation: Relation, column: Column) -> None:
    if column.type.kind in _NO_POSITION:
        raise SourceError(
            f"column `{column.name}` is {column.native or column.type}, whose values have no exact order",
            where=relation.name,
            hint="order the table by a number, a timestamp or text",
        )


def _nearest(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=3)
    if near:
        return f"did you mean {' or '.join(f'`{other}`' for other in near)}?"
    return f"there are {', '.join(f'`{other}`' for other in known[:20])}" if known else "there are none"

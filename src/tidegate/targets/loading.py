"""One load into an SQL database: the rows and their ledger entries, inside one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.core.errors import TargetError, UsageError
from tidegate.core.names import RUN_COLUMN
from tidegate.core.types import Kind
from tidegate.targets.contract import StagedSegment, TargetTable
from tidegate.targets.ddl import Dialect, TableName, TargetColumn, demand_ready, listed, quote
from tidegate.targets.ledger import Ledger
from tidegate.targets.merging import Merging, doubled, missing, newest
from tidegate.targets.session import Session


@dataclass(frozen=True)
class Load:
    """The ledger is asked here, behind the locks: what it does not hold is loaded, and written down."""

    session: Session
    dialect: Dialect
    ledger: Ledger
    table: TargetTable
    name: TableName
    generation: int

    def append(self, segments: Sequence[StagedSegment]) -> int:
        fresh = self._fresh(segments)
        if not fresh:
            return 0
        run_column = _run_column(self._columns(fresh))
        rows = self.session.copy(fresh, self._relation, run_column=run_column)
        self._record(fresh)
        return rows

    def append_missing(self, segments: Sequence[StagedSegment]) -> int:
        """Append only rows whose key is not there: these segments overlap with what was loaded before."""
        fresh = self._fresh(segments)
        if not fresh:
            return 0
        if not self.table.key:
            raise UsageError("rows that are there already can only be told by a key", where=self.table.name)
        merging = self._merging(fresh, self._batch(fresh))
        rows = self.session.change(merging.insert())
        self._record(fresh)
        return rows

    def merge(self, segments: Sequence[StagedSegment]) -> int:
        fresh = self._fresh(segments)
        if not fresh:
            return 0
        batch = self._batch(fresh)
        self._demand_keys(batch)
        merging = self._merging(fresh, batch)
        rows = self.session.change(merging.update()) + self.session.change(merging.insert())
        self._record(fresh)
        return rows

    def replace(self, segments: Sequence[StagedSegment]) -> int:
        """The newest run's segments become the whole table; what is older has been superseded."""
        latest = max(item.segment.run for item in segments)
        whole = [item for item in segments if item.segment.run == latest]
        fresh = self._fresh(segments)
        if self.ledger.knows_newer(self.table.stream, self.generation, latest):
            self._supersede(fresh)
            return 0
        self._supersede([item for item in fresh if item.segment.run != latest])
        unknown = [item for item in fresh if item.segment.run == latest]
        if not unknown:
            return 0
        run_column = _run_column(self._columns(whole))
        rows = self.session.replace(
            self.name, lambda beside: self.session.copy(whole, beside, run_column=run_column)
        )
        self._record(unknown)
        return rows

    @property
    def _relation(self) -> str:
        return self.session.relation(self.name)

    def _fresh(self, segments: Sequence[StagedSegment]) -> list[StagedSegment]:
        """Those that the ledger does not hold."""
        keys = [item.segment.key for item in segments]
        held = self.ledger.held(self.table.stream, self.generation, keys) if keys else frozenset()
        return [item for item in segments if item.segment.key not in held]

    def _columns(self, segments: Sequence[StagedSegment]) -> tuple[TargetColumn, ...]:
        """The table's columns, once it is sure that the segments' rows fit into them."""
        columns = self.session.columns(self.name)
        schemas = {item.segment.schema: item.schema for item in segments}
        demand_ready(self.table, schemas.values(), columns, self.dialect)
        return columns

    def _batch(self, segments: Sequence[StagedSegment]) -> str:
        """The rows, as they come, in a temporary table of the columns' types at the target."""
        self._columns(segments)
        shape = f"SELECT {listed(_names(segments))}, CAST(0 AS bigint) AS {quote(RUN_COLUMN)}"
        batch = self.session.temporary("_tidegate_batch", f"{shape} FROM {self._relation} LIMIT 0")
        self.session.copy(segments, batch, run_column=RUN_COLUMN)
        return batch

    def _demand_keys(self, batch: str) -> None:
        anywhere = " OR ".join(f"{quote(name)} IS NULL" for name in self.table.key)
        [(count,)] = self.session.rows(f"SELECT count(*) FROM {batch} WHERE {anywhere}")
        if count:
            raise TargetError(
                f"{count:,} rows have no value in {' or '.join(self.table.key)}, which rows are merged by; "
                "nothing was loaded",
                where=self.table.name,
                hint="fill the column at the source, or choose other columns with `keys:`",
            )

    def _merging(self, segments: Sequence[StagedSegment], batch: str) -> Merging:
        columns = self.session.columns(self.name)
        names = [*_names(segments), *([RUN_COLUMN] if _run_column(columns) else [])]
        cursor = [name for name in self.table.cursor if name in names]
        padded = self._padded(columns)
        [counts] = self.session.rows(missing(batch, self.table.key))
        [(several,)] = self.session.rows(doubled(batch, self.table.key, padded))
        best = newest(batch, names, self.table.key, cursor, padded)
        incoming = self.session.temporary("_tidegate_newest", best) if several else batch
        self.session.analyze(incoming, self.table.key)
        return Merging(
            table=self._relation,
            incoming=incoming,
            columns=names,
            key=self.table.key,
            cursor=cursor,
            blank=self._blank(columns, names),
            sparse_key=[name for name, count in zip(self.table.key, counts, strict=True) if count],
            tells_nulls=self.dialect.tells_nulls,
            padded=padded,
        )

    def _padded(self, columns: Sequence[TargetColumn]) -> list[str]:
        """Columns of the key that equality alone does not tell apart."""
        if not self.dialect.pads_texts:
            return []
        texts = {
            self.dialect.fold(column.name)
            for column in columns
            if column.type is not None and column.type.kind is Kind.TEXT
        }
        return [name for name in self.table.key if self.dialect.fold(name) in texts]

    def _blank(self, columns: Sequence[TargetColumn], names: Sequence[str]) -> list[str]:
        brought = {self.dialect.fold(name) for name in names}
        return [
            column.name
            for column in columns
            if self.dialect.fold(column.name) not in brought and column.nullable and not column.automatic
        ]

    def _record(self, segments: Sequence[StagedSegment]) -> None:
        for item in segments:
            segment = item.segment
            self.ledger.record(self.table.stream, self.generation, segment.key, segment.run, segment.rows)

    def _supersede(self, segments: Sequence[StagedSegment]) -> None:
        for item in segments:
            self.ledger.record(self.table.stream, self.generation, item.segment.key, item.segment.run, 0)


def _names(segments: Sequence[StagedSegment]) -> list[str]:
    """Every column that any of the segments has."""
    return list(dict.fromkeys(name for item in segments for name in item.schema.names))


def _run_column(columns: Sequence[TargetColumn]) -> str | None:
    return RUN_COLUMN if any(column.name == RUN_COLUMN for column in columns) else None

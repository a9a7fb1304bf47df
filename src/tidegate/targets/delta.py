"""Delta tables in a folder or a bucket, loaded without a JVM.

    <path>/orders/             a table as any Delta reader knows it
    <path>/_tidegate_loads/    which segments are in which table; see `delta_ledger`
    <path>/_tidegate_fences/

Files are written first, and nobody sees them; then one commit, made on the version that was read or not at
all, names the files that come and those that go and the load's number. That commit is the load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from tidegate.arrow import arrow_type
from tidegate.core.errors import IncompatibleTable, TargetError
from tidegate.core.types import Kind, Schema
from tidegate.core.watermark import StreamId
from tidegate.delta_log import Overtaken, said, undisturbed
from tidegate.targets.contract import StagedSegment, TargetTable
from tidegate.targets.ddl import TablePlan, action, plan_table
from tidegate.targets.delta_files import FileWriter, arrow_schema_of, data_files, files_of
from tidegate.targets.delta_ledger import WORDS, Ledger, fence_mark
from tidegate.targets.delta_loading import Load, commit
from tidegate.targets.delta_merging import present
from tidegate.targets.delta_types import DIALECT, columns_of, field, stored_schema

if TYPE_CHECKING:
    from deltalake import DeltaTable

_FEATURES = frozenset({"appendOnly", "invariants", "changeDataFeed", "checkConstraints", "timestampNtz"})
"""What a table may have switched on; a writer that does not know a feature must keep away."""

_BINDING = ("delta.constraints.", "delta.setTransactionRetentionDuration")
"""The second would let the table forget what it has loaded."""

_PARTITIONING = frozenset({Kind.BOOL, Kind.INT8, Kind.INT16, Kind.INT32, Kind.INT64, Kind.TEXT, Kind.DATE})

T = TypeVar("T")


class DeltaTarget:
    """Delta tables under a folder or an address such as s3://bucket/prefix. Holds nothing open."""

    def __init__(self, path: str | Path, options: Mapping[str, str] | None = None) -> None:
        self._place = str(path).rstrip("/") if "://" in str(path) else str(Path(path).absolute())
        self._options = dict(options or {})

    def __repr__(self) -> str:
        return f"DeltaTarget({self._place!r})"

    def action(self, table: TargetTable, schema: Schema) -> str:
        return action(table, self._plan(table, schema, self._newest(table.name)), DIALECT)

    def prepare(self, table: TargetTable, schema: Schema) -> None:
        if not self.ledger.exists():
            self.ledger.create()
        self._undisturbed(table.name, lambda: self._prepare(table, schema))

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
        ledger = self.ledger

        def attempt() -> int:
            load = Load(self.opened(table.name), self._options, ledger, table, generation, fence)
            return load.append_missing(once) if skip_existing else load.load(once)

        return self._undisturbed(table.name, attempt)

    def fence_off(self, stream: StreamId, fence: int) -> None:
        fence, tables = self.ledger.fence_off(stream, fence)
        for name in tables:
            self._undisturbed(name, partial(self._fence_table, name, stream, fence))

    def loaded(self, stream: StreamId, generation: int, keys: Sequence[str]) -> frozenset[str]:
        return self.ledger.held(stream, generation, keys)

    def last_run(self, stream: StreamId) -> int:
        return self.ledger.last_run(stream)

    def exists(self, name: str) -> bool:
        return self._newest(name) is not None

    def columns(self, name: str) -> tuple[str, ...]:
        return tuple(column.name for column in columns_of(self._newest(name)))

    def count(self, name: str) -> int:
        table = self._newest(name)
        if table is None:
            raise TargetError("there is no such table", where=name)
        with self._said(name):
            return table.count()

    def present(self, name: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> int:
        if not rows:
            return 0
        table = self.opened(name)
        with self._said(name):
            return present(table, files_of(table, self._options), columns, list(dict.fromkeys(rows)))

    def close(self) -> None:
        """Nothing is held open between operations."""

    # --- Tables

    @property
    def ledger(self) -> Ledger:
        return Ledger(self._place, self._options, self._newest)

    def _folder(self, name: str) -> str:
        """Where a table lies: `name`, or `folder.name` for one in a folder of its own."""
        parts = [_plain(part) for part in name.split(".", 1)]
        if not all(parts):
            raise TargetError(f"`{name}` is not the name of a table", hint="write `name` or `folder.name`")
        return "/".join([self._place, *parts])

    def _newest(self, name: str) -> DeltaTable | None:
        with self._said(name):
            from deltalake import DeltaTable
            from deltalake.exceptions import TableNotFoundError

            try:
                return DeltaTable(self._folder(name), storage_options=self._options)
            except TableNotFoundError:
                return None

    def opened(self, name: str) -> DeltaTable:
        found = self._newest(name)
        if found is None:
            raise TargetError("the table is gone", where=name, hint="run the sync again")
        return found

    def _said(self, name: str, *, writing: bool = False) -> AbstractContextManager[None]:
        return said(self._folder(name), WORDS, writing=writing)

    def _undisturbed(self, name: str, work: Callable[[], T]) -> T:
        return undisturbed(work, where=self._folder(name), words=WORDS)

    # --- Preparing

    def _plan(self, table: TargetTable, schema: Schema, found: DeltaTable | None) -> TablePlan:
        if found is not None:
            _demand_known(found, table)
        stored = stored_schema(schema)
        partitions = table.files.partition_by if found is None else found.metadata().partition_columns
        _demand_partitions(partitions, stored, table)
        return plan_table(table, stored, columns_of(found), DIALECT)

    def _prepare(self, table: TargetTable, schema: Schema) -> None:
        found = self._newest(table.name)
        plan = self._plan(table, schema, found)
        if found is None:
            self._create(table, plan)
            return
        with self._said(table.name, writing=True):
            if plan.add:
                _add_columns(found, plan)
                found = self.opened(table.name)
            if plan.widen:
                self._widen(found, plan)

    def _create(self, table: TargetTable, plan: TablePlan) -> None:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        schema = pa.schema([field(column) for column in plan.create])
        with self._said(table.name, writing=True):
            try:
                DeltaTable.create(
                    self._folder(table.name),
                    schema=schema,
                    mode="error",
                    partition_by=list(table.files.partition_by),
                    storage_options=self._options,
                )
            except DeltaError as error:
                if self._newest(table.name) is None:
                    raise
                raise Overtaken from error  # somebody has created it at the same moment: look what it is

    def _widen(self, found: DeltaTable, plan: TablePlan) -> None:
        """Write all rows again. Types that change in place are understood by the newest readers only."""
        wider = {step.column: arrow_type(step.after) for step in plan.widen}
        before = arrow_schema_of(found)
        schema = pa.schema([item.with_type(wider.get(item.name, item.type)) for item in before])
        storage = files_of(found, self._options)
        writer = FileWriter(storage, schema, found.metadata().partition_columns)
        with writer.kept_if_committed():
            for file in data_files(found):
                for batch in file.batches(storage, schema):
                    writer.write(batch)
            writer.finish()
            commit(found, writer.added, schema=schema, instead_of_all=True)

    def _fence_table(self, name: str, stream: StreamId, fence: int) -> None:
        """A load that began before this commit finds that it was overtaken."""
        found = self._newest(name)
        if found is None or (found.transaction_version(fence_mark(stream)) or 0) >= fence:
            return
        with self._said(name, writing=True):
            commit(found, [], transactions={fence_mark(stream): fence})


def _plain(part: str) -> str:
    safe = DIALECT.names.safe_table(part)
    return part if safe == part else DIALECT.names.digested(safe, part)


def _add_columns(table: DeltaTable, plan: TablePlan) -> None:
    from deltalake import CommitProperties
    from deltalake import Schema as DeltaSchema
    from deltalake.exceptions import CommitFailedError

    fields = DeltaSchema.from_arrow(pa.schema([field(column) for column in plan.add])).fields
    try:
        table.alter.add_columns(fields, commit_properties=CommitProperties(max_commit_retries=0))
    except CommitFailedError as error:
        raise Overtaken from error


def _demand_partitions(columns: Sequence[str], stored: Schema, table: TargetTable) -> None:
    """Refuse before the table is made: no load would succeed, and its partitions cannot be changed."""
    wrong = [c for c in stored.columns if c.name in columns and c.type.kind not in _PARTITIONING]
    if wrong:
        raise IncompatibleTable(
            f"column {wrong[0].name} is {DIALECT.native(wrong[0].type)} there, and a table is partitioned by "
            "text, whole numbers, dates or booleans",
            where=table.name,
            hint="choose other columns with `partition_by`",
        )


def _demand_known(found: DeltaTable, table: TargetTable) -> None:
    """Refuse a table that others made, if it wants something of its writers that we do not do."""
    features = set(found.protocol().writer_features or ())
    wants = sorted(features - _FEATURES)
    wants += [name for name in found.metadata().configuration if name.startswith(_BINDING)]
    wants += [name for item in found.schema().fields for name in item.metadata if name.startswith("delta.")]
    if wants:
        raise IncompatibleTable(
            f"the table uses {', '.join(dict.fromkeys(wants))}, which Tidegate does not write",
            where=table.name,
            hint="switch that off, or choose another `target_name`",
        )
    there, wanted = found.metadata().partition_columns, table.files.partition_by
    if wanted and list(wanted) != there:
        raise IncompatibleTable(
            f"the table is partitioned by {', '.join(there) or 'nothing'}, not by {', '.join(wanted)}",
            where=table.name,
            hint="correct `partition_by`, or choose another `target_name`",
        )

"""One load into a Delta table: its files, and the one commit by which they become the table's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow.fs import FileSystem

from tidegate.core.errors import TargetError, TidegateError, UsageError
from tidegate.core.names import RUN_COLUMN
from tidegate.core.strategies import WriteMode
from tidegate.delta_log import Overtaken, Words, said
from tidegate.targets.contract import StagedSegment, TargetTable
from tidegate.targets.ddl import demand_ready
from tidegate.targets.delta_files import (
    DataFile,
    FileWriter,
    arrow_schema_of,
    conformed,
    data_files,
    files_of,
    spelled,
)
from tidegate.targets.delta_ledger import (
    WORDS,
    Entry,
    Ledger,
    demand_not_fenced,
    fence_mark,
    head_of,
    load_mark,
)
from tidegate.targets.delta_merging import (
    Comparison,
    Outcome,
    candidates,
    compare,
    compared,
    demand_keys,
    kept,
    missing,
    newest,
)
from tidegate.targets.delta_types import DIALECT, columns_of, stored_schema
from tidegate.targets.segments import at_hand, batches

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction

_FILES = Words("files of the table", TargetError, "read or written")

Judgement = Callable[[pa.Table, Comparison, Iterable[tuple[DataFile, pa.Table]], int], Outcome]
"""`compare` or `missing`."""


def commit(
    table: DeltaTable,
    actions: Sequence[AddAction | RemoveAction],
    *,
    schema: pa.Schema | None = None,
    instead_of_all: bool = False,
    transactions: Mapping[str, int] | None = None,
    note: str = "",
) -> None:
    """Make the version after the one that was read, or raise `Overtaken`."""
    from deltalake import CommitProperties, Transaction
    from deltalake.exceptions import CommitFailedError

    properties = CommitProperties(
        max_commit_retries=0,
        app_transactions=[Transaction(name, version) for name, version in (transactions or {}).items()],
        custom_metadata={"userMetadata": note} if note else None,
    )
    try:
        table.create_write_transaction(
            list(actions),
            "overwrite" if instead_of_all else "append",
            table.schema() if schema is None else schema,
            partition_by=table.metadata().partition_columns,
            commit_properties=properties,
        )
    except CommitFailedError as error:
        raise Overtaken from error


@dataclass(frozen=True)
class Load:
    """An attempt on one version of the table. What the ledger does not hold is loaded, and written down."""

    found: DeltaTable
    options: Mapping[str, str]
    ledger: Ledger
    table: TargetTable
    generation: int
    fence: int

    def load(self, segments: Sequence[StagedSegment]) -> int:
        self._demand_not_fenced()
        match self.table.mode:
            case WriteMode.APPEND:
                return self._append(self._fresh(segments))
            case WriteMode.MERGE:
                return self._merge(self._fresh(segments), self.table.cursor, compare)
            case WriteMode.REPLACE:
                return self._replace(segments)

    def append_missing(self, segments: Sequence[StagedSegment]) -> int:
        """Append only rows whose key is not there: these segments overlap with what was loaded before."""
        self._demand_not_fenced()
        if not self.table.key:
            raise UsageError("rows that are there already can only be told by a key", where=self.table.name)
        return self._merge(self._fresh(segments), (), missing)

    # --- Modes

    def _append(self, fresh: Sequence[StagedSegment]) -> int:
        def fill(writer: FileWriter) -> list[DataFile]:
            writer.write_all(self._rows(fresh))
            return []

        return self._change(_entries(fresh), fill)

    def _merge(self, fresh: Sequence[StagedSegment], cursor: Sequence[str], judge: Judgement) -> int:
        def fill(writer: FileWriter) -> list[DataFile]:
            with TemporaryDirectory(prefix="tidegate-merge-") as folder:
                return self._merged(writer, Path(folder) / "rows.arrow", fresh, cursor, judge)

        return self._change(_entries(fresh), fill)

    def _replace(self, segments: Sequence[StagedSegment]) -> int:
        """The newest run's segments become the whole table; what is older has been superseded."""
        latest = max(item.segment.run for item in segments)
        fresh = self._fresh(segments)
        known = all(item.segment.run != latest for item in fresh)
        if known or self.ledger.knows_newer(self.table.stream, self.generation, latest):
            return self._change([Entry(item, 0) for item in fresh], lambda _: [])

        def fill(writer: FileWriter) -> list[DataFile]:
            writer.write_all(self._rows([item for item in segments if item.segment.run == latest]))
            return data_files(self.found)

        return self._change(_entries(fresh, latest), fill)

    def _merged(
        self,
        writer: FileWriter,
        spool: Path,
        fresh: Sequence[StagedSegment],
        cursor: Sequence[str],
        judge: Judgement,
    ) -> list[DataFile]:
        """Write what is left of the files that lose rows, and the rows that come in; return those files."""
        run = RUN_COLUMN in self._schema.names
        comparison = Comparison.spelled(self._schema, self.table.key, cursor, with_run=run)
        incoming = comparison.of(_spooled(self._rows(fresh), spool, self._schema), self._schema)
        if judge is compare:
            demand_keys(incoming, comparison, self.table.name)
        best = newest(incoming, comparison)
        files = candidates(data_files(self.found), best, comparison)
        outcome = judge(
            best, comparison, compared(files, self._storage, self._schema, comparison), incoming.num_rows
        )
        for file, stays in outcome.stay:
            writer.write_all(kept(file.batches(self._storage, self._schema), stays))
        before = writer.rows
        writer.write_all(kept(_read(spool), outcome.enter))
        writer.rows -= before  # what was there already has not come in
        return [file for file, _ in outcome.stay]

    # --- Parts

    @cached_property
    def _schema(self) -> pa.Schema:
        return arrow_schema_of(self.found)

    @cached_property
    def _storage(self) -> FileSystem:
        return files_of(self.found, self.options)

    def _demand_not_fenced(self) -> None:
        stream = self.table.stream
        demand_not_fenced(self.found.transaction_version(fence_mark(stream)) or 0, self.fence, stream)

    def _fresh(self, segments: Sequence[StagedSegment]) -> list[StagedSegment]:
        """Those that the ledger does not hold, once it is sure that their rows fit into the table."""
        keys = [item.segment.key for item in segments]
        held = self.ledger.held(self.table.stream, self.generation, keys)
        fresh = [item for item in segments if item.segment.key not in held]
        schemas = {item.segment.schema: stored_schema(item.schema) for item in fresh}
        demand_ready(self.table, schemas.values(), columns_of(self.found), DIALECT)
        return fresh

    def _rows(self, segments: Sequence[StagedSegment]) -> Iterator[pa.RecordBatch]:
        for here in at_hand(segments):
            for item in here:
                run = {RUN_COLUMN: item.segment.run} if RUN_COLUMN in self._schema.names else {}
                for batch in batches(item):
                    yield conformed(batch, self._schema, run)

    def _change(self, entries: Sequence[Entry], fill: Callable[[FileWriter], list[DataFile]]) -> int:
        """Write files, write down what the load brings, and commit. Returns how many rows came in."""
        if not entries:
            return 0
        layout = self.table.files
        partition_by = self.found.metadata().partition_columns
        cluster_by = spelled(layout.cluster_by, self._schema)
        writer = FileWriter(self._storage, self._schema, partition_by, cluster_by)
        with writer.kept_if_committed():
            with said(self.found.table_uri, _FILES):
                removed = fill(writer)
                writer.finish()
            number = self._begin(entries)
            self._commit([*writer.added, *(file.removed() for file in removed)], number, entries)
        with suppress(TidegateError, Overtaken):  # it has landed; tidying is the next one's to do then
            self.ledger.tidy()
        return writer.rows

    def _begin(self, entries: Sequence[Entry]) -> int:
        stream = self.table.stream
        previous = head_of(self.found, stream)
        number = self.ledger.begin(stream, self.table.name, self.generation, entries, previous=previous)
        # Asked only now: whoever fences off from here on finds this load in the ledger.
        demand_not_fenced(self.ledger.fence(stream), self.fence, stream)
        return number

    def _commit(
        self, actions: Sequence[AddAction | RemoveAction], number: int, entries: Sequence[Entry]
    ) -> None:
        stream = self.table.stream
        note = f"tidegate {stream}: load {number}, {len(entries)} segments"
        version = self.found.version()
        try:
            with said(self.found.table_uri, WORDS, writing=True):
                commit(self.found, actions, transactions={load_mark(stream): number}, note=note)  # the load
        except (Overtaken, TidegateError):
            # The answer may have been lost, or what comes after a commit may have failed: the log knows.
            now = self.ledger.newest(self.table.name)
            if head_of(now, stream) == number:
                return
            if now is None or now.version() == version:
                raise
            raise Overtaken from None


def _entries(fresh: Sequence[StagedSegment], latest: int | None = None) -> list[Entry]:
    """What a load brings; with `latest`, only that run's rows come in, and those of older ones never will."""
    return [Entry(item, item.segment.rows if latest in (None, item.segment.run) else 0) for item in fresh]


def _spooled(rows: Iterable[pa.RecordBatch], path: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The same rows, on their way into a file of their own: they are read twice, and came from afar."""
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema, options=options) as writer:
        for batch in rows:
            writer.write_batch(batch)
            yield batch


def _read(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(str(path), "rb") as file, pa.ipc.open_file(file) as reader:
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)

"""Staging → target: pending segments, in groups, each group in one target transaction with the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import groupby

from tidegate.core import transitions
from tidegate.core.deadlines import NEVER, Deadline
from tidegate.core.errors import ConnectError, OutcomeUnknown, StagingError, StateError, TargetError
from tidegate.core.names import named_schema
from tidegate.core.receipts import Segment
from tidegate.core.strategies import WriteMode
from tidegate.core.types import Schema
from tidegate.core.watermark import Watermark
from tidegate.staging.contract import StagedObject, Staging
from tidegate.state.hold import HeldStream
from tidegate.sync.naming import Names, Naming, named_table, newly_named
from tidegate.sync.progress import Progress
from tidegate.targets.contract import LOST_SEGMENT, StagedSegment, Target, TargetTable

ROWS_PER_LOAD = 1_000_000
"""Rows in one target transaction, about: large enough to be bulk, small enough to be retried."""


@dataclass(frozen=True)
class Loader:
    """What it takes to move pending segments into the target."""

    staging: Staging
    open_target: Callable[[], Target]
    """Called when there is something to load."""
    naming: Naming
    progress: Progress
    clock: Callable[[], datetime]
    deadline: Deadline = NEVER

    def load(self, held: HeldStream, table: TargetTable) -> None:
        """Load everything that is pending and commit `loaded`. The table's columns are the source's here."""
        mark = held.watermark
        if mark is None or not mark.pending:
            return
        target = self.open_target()
        there = _columns_there(target, table, mark)
        if mark.loaded.at is None and not mark.manual and not mark.pending[0].snapshot:
            _demand_own(target, table, before=mark.pending[0].run)
        schemas = {key: Schema.from_json(data) for key, data in mark.schemas}
        names = self._names(held, target, table, schemas)
        table = named_table(table, names.all)
        self._tell_added(table, names.all.values(), there)
        for fingerprint in dict.fromkeys(segment.schema for segment in mark.pending):
            target.prepare(table, named_schema(schemas[fingerprint], names.of(schemas[fingerprint])))
        for group in _groups(mark.pending):
            self.deadline.demand(self.clock(), where=str(mark.stream), stopped="between two loads")
            staged = self._staged(group, schemas, names)
            held.check()
            _load_once(target, table, staged, generation=mark.generation, fence=held.lease.fence)
            moved, events = transitions.loaded(held.mark, {s.key for s in group}, self.clock())
            held.commit(moved, events)
            self.progress.loaded(mark.stream, sum(segment.rows for segment in group))

    def demand_fit(self, table: TargetTable, schema: Schema) -> None:
        """Raise `IncompatibleTable` if rows of this schema could not go into the table, changing nothing."""
        # A target that cannot be reached now may be there when there is something to load.
        with suppress(ConnectError):
            target = self.open_target()
            names = self.naming.names(table.stream, schema.names, lambda: target.columns(table.name))
            target.action(named_table(table, names), named_schema(schema, names))

    def returned(self, table: TargetTable, schema: Schema, added: Sequence[str]) -> tuple[str, ...]:
        """What is to be told of columns that are new at the source, while the table has them already."""
        with suppress(ConnectError):
            there = self.open_target().columns(table.name)
            names = self.naming.names(table.stream, schema.names, lambda: there)
            present = {self.naming.rules.fold(name) for name in there}
            found = [names[name] for name in added if self.naming.rules.fold(names[name]) in present]
            return tuple(
                f"{table.name} has a column {name} already: rows that were loaded before keep what is in it"
                for name in found
            )
        return ()

    def demand_own(self, table: TargetTable, mark: Watermark | None) -> None:
        """Refuse to append rows after runs that the state knows nothing of: it may bring what is there."""
        with suppress(ConnectError):  # once there is something to load, a new stream is asked again
            target = self.open_target()
            _demand_own(target, table, known=mark.runs if mark else 0)
            rows = _rows_there(target, table) if mark is None and table.mode is WriteMode.APPEND else 0
            if rows:
                others = f"no sync of {table.stream} has brought the {rows:,} rows that are in {table.name}"
                self.progress.note(table.stream, f"{others}: what is read now is appended to them")

    def _tell_added(self, table: TargetTable, names: Iterable[str], there: Sequence[str]) -> None:
        """Also a column that somebody dropped at the target is made anew, and old rows have nothing in it."""
        present = {self.naming.rules.fold(name) for name in there}
        for name in names:
            if present and self.naming.rules.fold(name) not in present:
                self.progress.note(
                    table.stream,
                    f"column {name} is added to {table.name}: rows that are there have NULL in it",
                )

    def _names(
        self, held: HeldStream, target: Target, table: TargetTable, schemas: Mapping[str, Schema]
    ) -> Names:
        """The target's names of all columns; new ones are committed before anything goes there under them."""
        known = list(schemas.values())
        newest = schemas.get(held.mark.schema or "", known[-1])
        older = [schema.names for schema in reversed(known) if schema != newest]
        names = self.naming.of_all(table.stream, newest.names, older, lambda: target.columns(table.name))
        new = newly_named(held.mark, names.lasting)
        if new is not None:
            held.commit(*transitions.name(held.mark, new, self.clock()))
        return names

    def _staged(self, group: list[Segment], schemas: dict[str, Schema], names: Names) -> list[StagedSegment]:
        there = self.staging.stat_all([segment.key for segment in group])
        for segment in group:
            self._demand_whole(segment, there.get(segment.key))
        return [
            StagedSegment(
                segment=segment,
                schema=named_schema(schemas[segment.schema], names.of(schemas[segment.schema])),
                path=self.staging.local_path(segment.key),
                open=partial(self.staging.open, segment.key),
                names=schemas[segment.schema].names,
                area=self.staging if self.staging.shared else None,
            )
            for segment in group
        ]

    def _demand_whole(self, segment: Segment, found: StagedObject | None) -> None:
        if found is not None and found.bytes == segment.bytes:
            return
        problem = "is gone from staging" if found is None else f"has {found.bytes} bytes, not {segment.bytes}"
        raise StagingError(
            f"a pending segment {problem}",
            where=str(self.staging.local_path(segment.key) or self.staging.url(segment.key)),
            hint=LOST_SEGMENT,
        )


def _columns_there(target: Target, table: TargetTable, mark: Watermark) -> Sequence[str]:
    """The columns of a table that rows were loaded into; none before that, or if all rows are replaced.

    A table that vanished would be made anew and hold the news alone, looking whole.
    """
    if table.mode is WriteMode.REPLACE or not mark.loaded.rows_total:
        return ()
    there = target.columns(table.name)
    if there:
        return there
    raise TargetError(
        f"the target has no table {table.name}, though {mark.loaded.rows_total:,} rows were loaded before",
        where=str(mark.stream),
        hint="put its name back, or bring all rows again after `tidegate watermark reset`",
    )


def _demand_own(target: Target, table: TargetTable, *, known: int = 0, before: int | None = None) -> None:
    """Appended rows double if they are read again, as they are with a state older than the target's rows.

    So the last run in the ledger has to be `known`, or one of those that are being loaded, none `before`.
    """
    last = target.last_run(table.stream) if table.mode is WriteMode.APPEND else 0
    if last <= known or (before is not None and last >= before):
        return
    if _rows_there(target, table):
        raise StateError(
            f"{table.name} holds rows of a run that the state does not know, number {last}: the state was "
            "lost, or an older one put back. Rows that are read again would be appended again",
            where=str(table.stream),
            hint="put the newest state back; or say where to go on with `tidegate watermark set`; or empty "
            "the table to bring all rows again. Projects that share a target name their pipelines apart",
        )


def _rows_there(target: Target, table: TargetTable) -> int:
    return target.count(table.name) if target.exists(table.name) else 0


def _load_once(
    target: Target, table: TargetTable, staged: list[StagedSegment], *, generation: int, fence: int
) -> None:
    """Load a group. If the answer to the commit was lost, the ledger says what happened."""
    skip = table.mode is WriteMode.APPEND and staged[0].segment.overlaps
    load = partial(target.load, table, staged, generation=generation, fence=fence, skip_existing=skip)
    try:
        load()
    except OutcomeUnknown:
        keys = [item.segment.key for item in staged]
        if target.loaded(table.stream, generation, keys) != frozenset(keys):
            load()


def _groups(pending: tuple[Segment, ...]) -> Iterator[list[Segment]]:
    """Groups of segments in their order; a snapshot is one group."""
    if any(segment.snapshot for segment in pending):
        yield list(pending)
        return
    for _, alike in groupby(pending, key=lambda segment: segment.overlaps):
        group: list[Segment] = []
        for segment in alike:
            group.append(segment)
            if sum(s.rows for s in group) >= ROWS_PER_LOAD:
                yield group
                group = []
        if group:
            yield group

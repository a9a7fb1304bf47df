"""Looking at what columns are called at the target, and deciding otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from difflib import get_close_matches
from enum import StrEnum

from tidegate.config.pipelines import Pipeline
from tidegate.core import transitions
from tidegate.core.errors import ConfigError, UsageError
from tidegate.core.mappings import native_type
from tidegate.core.names import name_columns
from tidegate.core.types import Column
from tidegate.core.watermark import StreamId
from tidegate.sync.evolution import compare, last_schema
from tidegate.sync.job import TableJob, describe
from tidegate.sync.naming import Naming
from tidegate.sync.parts import Parts
from tidegate.sync.streams import family


class Origin(StrEnum):
    """Where a column's name at the target comes from."""

    SOURCE = "source"
    SAFE = "made safe"
    MAPPED = "mapped"


@dataclass(frozen=True)
class NamedColumn:
    column: Column
    name: str
    native: str
    """The type that it gets there, if the table is made now."""
    origin: Origin
    there: bool
    """Whether the table at the target has it already."""
    needs_quotes: bool
    """Whether people have to quote the name in queries."""


@dataclass(frozen=True)
class TableColumns:
    """One table's columns, and the act of naming them."""

    pipeline: Pipeline
    table: str
    parts: Parts

    def named(self) -> list[NamedColumn]:
        job, naming = self._job(), self._naming()
        there = self._there(job)
        names = naming.names(self._stream, job.schema.names, lambda: there)
        return [
            NamedColumn(
                column,
                names[column.name],
                native_type(job.settings.lossy.target, column.type),
                self._origin(naming, column.name, names[column.name]),
                names[column.name] in there,
                naming.rules.needs_quotes(names[column.name]),
            )
            for column in job.schema.columns
        ]

    def map(self, column: str, name: str) -> None:
        """Decide what a column shall be called. Refused if rows of it have arrived under another name."""
        job, naming = self._job(), self._naming()
        _demand_column(column, job)
        problem = naming.rules.wrong(name)
        if problem is not None:
            raise UsageError(f"`{name}` {problem}", where=str(self._stream))
        mapped = {**naming.mapped, column: name}
        replace(naming, mapped=mapped).names(self._stream, job.schema.names, lambda: self._there(job))
        self.pipeline.mappings.save(self.table, mapped)

    def unmap(self, column: str) -> str:
        """Leave a column's name to the rules again, and say what it is then."""
        job, naming = self._job(), self._naming()
        if column not in naming.mapped:
            known = ", ".join(f"`{name}`" for name in naming.mapped) or "none is"
            raise UsageError(
                f"column `{column}` is not mapped", where=str(self._stream), hint=f"mapped: {known}"
            )
        mapped = {name: to for name, to in naming.mapped.items() if name != column}
        known_names = dict(naming.remembered(self._stream).names)
        known_names.pop(column, None)
        there = self._there(job)
        columns = list(dict.fromkeys((*job.schema.names, column)))
        free = name_columns(columns, naming.rules, mapped=mapped, remembered=known_names, there=there)[column]
        replace(naming, mapped={**mapped, column: free}).names(self._stream, columns, lambda: there)
        self.pipeline.mappings.save(self.table, mapped)
        return free

    def accept(
        self, *, reason: str, clock: Callable[[], datetime], token: Callable[[], str]
    ) -> tuple[str, ...]:
        """Go on with columns that have changed at the source; returns what is different about them."""
        job = self._job()
        changes: tuple[str, ...] = ()
        for stream in family(self._stream):
            before = last_schema(self.parts.store.read(stream).watermark)
            if before is None or before.fingerprint == job.schema.fingerprint:
                continue
            changes = compare(before, job.schema, job.settings.lossy.source).words
            schema = job.schema.fingerprint, job.schema.to_json()
            with self.parts.hold(stream, clock, token) as held:
                held.commit(*transitions.accept(held.mark, schema, changes, reason=reason, now=clock()))
        return changes

    @property
    def _stream(self) -> StreamId:
        return StreamId(self.pipeline.name, self.table)

    def _job(self) -> TableJob:
        return describe(self.parts.source(), self.pipeline.settings_for(self.table), self._stream)

    def _naming(self) -> Naming:
        return Naming(self.pipeline.name_rules, self.pipeline.mappings.of(self.table), self.parts.store)

    def _there(self, job: TableJob) -> tuple[str, ...]:
        return self.parts.target().columns(job.target.name)

    def _origin(self, naming: Naming, column: str, name: str) -> Origin:
        if column in naming.mapped:
            return Origin.MAPPED
        return Origin.SOURCE if column == name else Origin.SAFE


def _demand_column(column: str, job: TableJob) -> None:
    if column in job.schema.names:
        return
    near = get_close_matches(column, job.schema.names, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(job.schema.names[:20])}"
    raise ConfigError(f"there is no column `{column}`", where=str(job.stream), hint=hint)

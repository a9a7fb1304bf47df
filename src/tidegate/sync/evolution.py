"""How a table's columns have changed since its last run, and whether one may go on.

New columns are added at the target and wider types widen it. A column that is gone stays at the target and
gets no more values. What stops a table are changes after which rows that were read before may not be what
they were: a narrower type makes the source cut or round them, and no cursor tells of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tidegate.core.errors import SchemaChanged
from tidegate.core.natives import Relation, outgrown, relation
from tidegate.core.strategies import WriteMode
from tidegate.core.types import Column, Kind, Schema
from tidegate.core.watermark import RunKind, Watermark
from tidegate.sync.job import TableJob
from tidegate.targets.fitting import holds, widened

_TOLD_BY_NAME = frozenset({Kind.TEXT, Kind.BYTES})
"""What many types travel as that have little in common."""


@dataclass(frozen=True, slots=True)
class Retyped:
    """A column whose type is another now."""

    before: Column
    after: Column

    def __str__(self) -> str:
        return f"{self.after.name} ({_typed(self.before)} before, {_typed(self.after)} now)"


@dataclass(frozen=True, slots=True)
class Evolution:
    """What changed from one schema to the next."""

    added: tuple[Column, ...] = ()
    dropped: tuple[Column, ...] = ()
    renamed: tuple[Retyped, ...] = ()
    """Columns with another name, which are mapped to what the old one was."""
    wider: tuple[Retyped, ...] = ()
    narrower: tuple[Retyped, ...] = ()
    """Not all values of the old type are values of the new one."""
    other: tuple[Retyped, ...] = ()
    """Values of another kind."""
    recast: tuple[Retyped, ...] = ()
    """The same at the source, and carried as text now, or no longer: `on_lossy` says so."""
    key: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    """What made a row the same row before, and what does now."""

    @property
    def words(self) -> tuple[str, ...]:
        """What a report says of it."""
        told = [f"column {column.name} ({_typed(column)}) is new" for column in self.added]
        told += [
            f"column {column.name} is gone: it stays at the target and gets no more values"
            for column in self.dropped
        ]
        told += [
            f"column {change.before.name} is called {change.after.name} now, and goes on where it was"
            for change in self.renamed
        ]
        told += [f"column {change} is wider{_and_text(change)}" for change in self.wider]
        told += [f"column {change} is narrower" for change in self.narrower]
        told += [f"column {change} holds another kind of value" for change in self.other]
        told += [
            f"column {change.after.name} ({change.after.native}) travels as {change.after.type} now, "
            f"and was {change.before.type}"
            for change in self.recast
        ]
        if self.key:
            before, after = ("+".join(names) or "none" for names in self.key)
            told.append(f"the key is {after} now, it was {before}")
        return (*told, *self._renames())

    def _renames(self) -> list[str]:
        """A rename looks like one column gone and another one of its type new."""
        return [
            f"if {new.name} is {old.name} renamed: `tidegate columns map {new.name} {old.name}` before the "
            "sync that brings it lets it go on where the old one ended"
            for old in self.dropped
            for new in self.added
            if old.type == new.type
        ]

    def stops(self, mode: WriteMode) -> tuple[str, ...]:
        """Why a table that is read incrementally cannot simply go on."""
        told = [f"column {change} is narrower, and may have cut rows read before" for change in self.narrower]
        told += [f"column {change} holds another kind of value" for change in self.other]
        if self.key and mode is WriteMode.MERGE:
            before, after = ("+".join(names) or "none" for names in self.key)
            told.append(f"rows were merged by {before} and would be by {after}")
        return tuple(told)


def compare(
    before: Schema,
    after: Schema,
    source: str = "",
    *,
    fixed: Collection[str] = (),
    mapped: Mapping[str, str] = MappingProxyType({}),
) -> Evolution:
    """`source` says whose words the native types are; without it only what travels is compared.

    Columns that are `fixed` find rows: they must not become text. What is `mapped` to the name of a column
    that is gone is that column.
    """
    old, new = ({column.name: column for column in schema.columns} for schema in (before, after))
    renamed = _renamed(old, new, mapped)
    both = [*(Retyped(old[name], new[name]) for name in new if name in old), *renamed]
    recast = [change for change in both if _is_recast(change)]
    judged = [(change, _judged(change, source, fixed)) for change in both if change not in recast]

    def those(wanted: Relation) -> tuple[Retyped, ...]:
        return tuple(change for change, found in judged if found is wanted)

    known = {column.name for change in both for column in (change.before, change.after)}
    former = {change.after.name: change.before.name for change in renamed}
    same_key = tuple(former.get(name, name) for name in after.key) == before.key
    return Evolution(
        added=tuple(column for name, column in new.items() if name not in known),
        dropped=tuple(column for name, column in old.items() if name not in known),
        renamed=renamed,
        wider=those(Relation.WIDER),
        narrower=those(Relation.NARROWER),
        other=those(Relation.OTHER),
        recast=tuple(recast),
        key=None if same_key else (before.key, after.key),
    )


def _renamed(
    old: Mapping[str, Column], new: Mapping[str, Column], mapped: Mapping[str, str]
) -> tuple[Retyped, ...]:
    """A column that is new goes on where another has ended, if somebody has given it that one's name."""
    ended = {name: column for name, column in old.items() if name not in new and name not in mapped}
    begun = (column for name, column in new.items() if name not in old)
    return tuple(
        Retyped(ended[mapped[column.name]], column) for column in begun if mapped.get(column.name) in ended
    )


def _judged(change: Retyped, source: str, fixed: Collection[str]) -> Relation:
    """What became of a type: as it travels and, where that tells too little, in the source's words."""
    before, after = change.before, change.after
    if _becomes_text(change):
        fits = after.name not in fixed and outgrown(source, before.native, after.native)
        return Relation.WIDER if fits else Relation.OTHER
    if before.type.kind is after.type.kind:
        told = relation(source, before.native, after.native)
        by_name = before.type == after.type or before.type.kind in _TOLD_BY_NAME
        if told is Relation.NARROWER or (by_name and told is not Relation.SAME):
            return told
    if before.type == after.type:
        return Relation.SAME
    if _holds_all(change):
        return Relation.WIDER
    return Relation.NARROWER if _is_alike(change) else Relation.OTHER


def admitted(mark: Watermark | None, job: TableJob) -> Evolution:
    """What changed since the last run, if the table may go on with it. Raises `SchemaChanged` if not."""
    before = last_schema(mark)
    if before is None or before.fingerprint == job.schema.fingerprint:
        return Evolution()
    fixed = {*job.settings.cursor.columns, *job.schema.key}
    names = job.settings.names
    evolution = compare(before, job.schema, job.settings.lossy.source, fixed=fixed, mapped=names)
    reasons = evolution.stops(job.target.mode) if job.kind is RunKind.INCREMENTAL else ()
    if reasons:
        raise _stopped(job, before, reasons)
    return evolution


def last_schema(mark: Watermark | None) -> Schema | None:
    """The schema of the last run; None before the first."""
    if mark is None or mark.schema is None:
        return None
    data = dict(mark.schemas).get(mark.schema)
    return None if data is None else Schema.from_json(data)


def _stopped(job: TableJob, before: Schema, reasons: Sequence[str]) -> SchemaChanged:
    shown = f"it was ({_listed(before)}) and is ({_listed(job.schema)})"
    return SchemaChanged(
        f"the table has changed at the source; {'; '.join(reasons)}; {shown}. Nothing was read",
        where=str(job.stream),
        hint="put it back; or go on with `tidegate columns accept`, after making the target's column fit "
        "where it does not; or bring all rows anew with `tidegate watermark reset`",
    )


def _listed(schema: Schema) -> str:
    return ", ".join(f"{column.name} {_typed(column)}" for column in schema.columns)


def _typed(column: Column) -> str:
    return column.native or str(column.type)


def _is_recast(change: Retyped) -> bool:
    """Whether the column is what it was, and only carried otherwise: every value has its text."""
    before, after = change.before, change.after
    if before.type.kind is after.type.kind or before.native != after.native or not before.native:
        return False
    return Kind.TEXT in (before.type.kind, after.type.kind)


def _becomes_text(change: Retyped) -> bool:
    return change.before.type.kind is Kind.DECIMAL and change.after.type.kind is Kind.TEXT


def _and_text(change: Retyped) -> str:
    return ", and travels as text now" if _becomes_text(change) else ""


def _holds_all(change: Retyped) -> bool:
    return holds(change.after.type, change.before.type)


def _is_alike(change: Retyped) -> bool:
    """Whether the types are sizes of one kind of value."""
    before, after = change.before.type, change.after.type
    return holds(before, after) or widened(before, after) is not None

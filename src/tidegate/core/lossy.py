"""What becomes of single values that their type cannot hold: decided by policy, counted, never silent."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from tidegate.core.mappings import NO_LIMITS, SOURCES, TARGETS, Documents, Limits, carries, limits, unfit
from tidegate.core.types import Column, DataType, Kind

Tally = tuple[tuple[str, int], ...]
"""How many values became NULL, by column. Columns without any are not in it."""

_STRICT = frozenset({"postgresql"})
"""Sources whose texts cannot hold NUL either and whose JSON is valid, so that nobody need look for it."""


class OnLossy(StrEnum):
    TEXT = "text"
    """The whole column travels as the text that the source writes."""
    NULL = "null"
    """Such a value becomes NULL, and is counted."""
    ERROR = "error"
    """Such a value stops the table."""


@dataclass(frozen=True, slots=True)
class LossyPolicy:
    """What a table does with such values. Between unknown databases nothing is decided."""

    source: str = ""
    target: str = ""
    otherwise: OnLossy = OnLossy.ERROR
    columns: Mapping[str, OnLossy] = field(default_factory=dict)
    """Columns that are decided on by themselves."""

    def of(self, column: str) -> OnLossy:
        return self.columns.get(column, self.otherwise)


@dataclass(frozen=True, slots=True)
class Fit:
    """A policy, applied to the columns of a table."""

    columns: tuple[Column, ...]
    """As they travel."""
    nulled: tuple[str, ...] = ()
    """Columns in which a value that does not fit becomes NULL."""
    limits: tuple[tuple[str, Limits], ...] = ()
    """What the target cannot hold of them."""
    as_written: tuple[str, ...] = ()
    """Columns that may hold what their type cannot, and travel as the text of whatever is in them."""


def fit(columns: Iterable[Column], policy: LossyPolicy, needed: Collection[str] = ()) -> Fit:
    """How columns travel. Those that are `needed` to find and merge rows must arrive as they are."""
    columns = tuple(columns)
    if policy.source not in SOURCES:
        return Fit(columns)
    decided = {column.name: _decided(column, policy, needed) for column in columns}
    travelling = tuple(_travelling(column, decided[column.name], policy) for column in columns)
    nulled = tuple(
        column.name
        for column in travelling
        if decided[column.name] is OnLossy.NULL and _doubtful(column, policy)
    )
    bounds = ((column.name, _limits(column.type.kind, policy)) for column in travelling)
    as_written = tuple(
        before.name
        for before, after in zip(columns, travelling, strict=True)
        if decided[before.name] is OnLossy.TEXT
        and after.type.kind is Kind.TEXT
        and unfit(policy.source, before.type.kind)
    )
    return Fit(travelling, nulled, tuple(item for item in bounds if item[1] != NO_LIMITS), as_written)


def _decided(column: Column, policy: LossyPolicy, needed: Collection[str]) -> OnLossy:
    return OnLossy.ERROR if column.name in needed else policy.of(column.name)


def _travelling(column: Column, decided: OnLossy, policy: LossyPolicy) -> Column:
    if not carries(policy.target, column.type) or (
        decided is OnLossy.TEXT and _is_better_text(column.type.kind, policy)
    ):
        return replace(column, type=DataType(Kind.TEXT))
    if decided is OnLossy.NULL and _doubtful(column, policy):
        return replace(column, nullable=True)
    return column


def _is_better_text(kind: Kind, policy: LossyPolicy) -> bool:
    """Whether text would hold what the kind does not."""
    return kind is not Kind.TEXT and (
        bool(unfit(policy.source, kind)) or _limits(kind, policy).better_as_text
    )


def _doubtful(column: Column, policy: LossyPolicy) -> bool:
    """Whether a column may hold a value that does not fit."""
    kind = column.type.kind
    return bool(column.charset or unfit(policy.source, kind)) or _limits(kind, policy) != NO_LIMITS


def _limits(kind: Kind, policy: LossyPolicy) -> Limits:
    if policy.target not in TARGETS:
        return NO_LIMITS
    found = limits(policy.target, kind)
    if policy.source not in _STRICT:
        return found
    documents = found.documents if found.documents is Documents.PAIRED else Documents.ANY
    return replace(found, nul=True, documents=documents)


def tally(*counts: Mapping[str, int] | Tally) -> Tally:
    """Several counts as one."""
    total: dict[str, int] = {}
    for count in counts:
        for column, values in dict(count).items():
            total[column] = total.get(column, 0) + values
    return tuple(sorted((column, values) for column, values in total.items() if values))

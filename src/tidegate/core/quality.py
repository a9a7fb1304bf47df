"""Checks of data quality: the rules, what was found, and what follows from it.

Rules are checked on rows as they pass to staging. What is found travels in receipts and adds up in the run,
and is judged when the whole window has been read: until then nothing of it is the target's to load.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from math import inf
from typing import Any


class OnFailure(StrEnum):
    WARN = "warn"
    """Load everything, and say what is wrong."""
    QUARANTINE = "quarantine"
    """Put aside what is wrong, and load the rest."""
    FAIL = "fail"
    """Load nothing of the run; the next one reads its window again."""


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """What the values of one column have to be. A missing value breaks none but a limit on missing values."""

    column: str
    max_null_percentage: float | None = None
    allowed: tuple[str, ...] = ()
    """Empty: any."""
    min: str | None = None
    max: str | None = None
    matches: str | None = None


@dataclass(frozen=True, slots=True)
class RowCheck:
    """A condition in SQL that no row may break; one that is neither true nor false is not broken."""

    name: str
    sql: str


@dataclass(frozen=True, slots=True)
class Freshness:
    """How old the newest row may be."""

    column: str
    max_age: timedelta
    zone: str = "UTC"
    """The zone that a timestamp without one was written in."""


@dataclass(frozen=True, slots=True)
class RowCount:
    """How far a run may be from the mean of the runs before it."""

    max_drift_percentage: float
    runs: int = 10
    """How many of them."""
    least: int = 3
    """With fewer there is no mean worth the name."""


@dataclass(frozen=True, slots=True)
class Rules:
    on_failure: OnFailure = OnFailure.FAIL
    max_null_percentage: float | None = None
    """Of all values of a run."""
    unique_key: bool = False
    columns: tuple[ColumnRule, ...] = ()
    checks: tuple[RowCheck, ...] = ()
    row_count: RowCount | None = None
    freshness: Freshness | None = None

    @property
    def fingerprint(self) -> str:
        """What was found under other rules says nothing about these."""
        text = json.dumps(asdict(self), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def counts_nulls(self) -> bool:
        return self.max_null_percentage is not None or any(rule.max_null_percentage for rule in self.columns)


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found in rows; those of several chunks add up."""

    rows: int = 0
    nulls: tuple[tuple[str, int], ...] = ()
    """Missing values, by column."""
    failed: tuple[tuple[str, int], ...] = ()
    """Rows that break a rule, by rule."""
    newest: datetime | None = None

    def __add__(self, other: Findings) -> Findings:
        moments = [moment for moment in (self.newest, other.newest) if moment is not None]
        return Findings(
            rows=self.rows + other.rows,
            nulls=_added(self.nulls, other.nulls),
            failed=_added(self.failed, other.failed),
            newest=max(moments, default=None),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "nulls": dict(self.nulls),
            "failed": dict(self.failed),
            "newest": self.newest.isoformat() if self.newest else None,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Findings:
        return cls(
            rows=data["rows"],
            nulls=tuple(data["nulls"].items()),
            failed=tuple(data["failed"].items()),
            newest=None if data["newest"] is None else datetime.fromisoformat(data["newest"]),
        )


def _added(
    one: tuple[tuple[str, int], ...], other: tuple[tuple[str, int], ...]
) -> tuple[tuple[str, int], ...]:
    total: Counter[str] = Counter(dict(one))
    total.update(dict(other))
    return tuple(total.items())


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong with a run's rows."""

    rows: tuple[str, ...] = ()
    """Rules that single rows break."""
    whole: tuple[str, ...] = ()
    """Rules that all rows together break: no row is to blame more than another."""

    @property
    def failures(self) -> tuple[str, ...]:
        return self.rows + self.whole


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a verdict is reached from."""

    findings: Findings
    now: datetime
    earlier: Sequence[int] = field(default=())
    """The row counts of earlier runs, the newest last."""
    repeated: int = 0
    """Keys that more than one row has."""


def judge(rules: Rules, evidence: Evidence) -> Verdict:
    found = evidence.findings
    rows = [f"{count:,} of {found.rows:,} rows break `{name}`" for name, count in found.failed if count]
    whole = [
        *_nulls(rules, found),
        *_drift(rules.row_count, found.rows, evidence.earlier),
        *_undated(rules.freshness, found),
        *stale(rules.freshness, found.newest, evidence.now),
    ]
    if evidence.repeated:
        whole.append(f"{evidence.repeated:,} keys come more than once")
    return Verdict(tuple(rows), tuple(whole))


def _nulls(rules: Rules, found: Findings) -> Iterator[str]:
    if not found.rows:
        return
    nulls = dict(found.nulls)
    limit = rules.max_null_percentage
    share = 100 * sum(nulls.values()) / (found.rows * len(nulls)) if nulls else 0.0
    if limit is not None and share > limit:
        yield f"{share:.2f} % of all values are missing, {limit:g} % may be"
    for rule in rules.columns:
        most = rule.max_null_percentage
        share = 100 * nulls.get(rule.column, 0) / found.rows
        if most and share > most:
            yield f"{share:.2f} % of the values of {rule.column} are missing, {most:g} % may be"


def _drift(rule: RowCount | None, rows: int, earlier: Sequence[int]) -> Iterator[str]:
    if rule is None or len(earlier) < rule.least:
        return
    last = earlier[-rule.runs :]
    mean = sum(last) / len(last)
    drift = 100 * (rows - mean) / mean if mean else inf if rows else 0.0
    if abs(drift) > rule.max_drift_percentage:
        yield (
            f"{rows:,} rows are {drift:+.0f} % off the mean of {mean:,.0f} of the last {len(last)} runs, "
            f"{rule.max_drift_percentage:g} % may be"
        )


def _undated(rule: Freshness | None, found: Findings) -> Iterator[str]:
    if rule is not None and found.rows and found.newest is None:
        yield f"no row has a value in {rule.column}, so nobody knows how old they are"


def stale(rule: Freshness | None, newest: datetime | None, now: datetime) -> Iterator[str]:
    """Whether the newest row is too old."""
    if rule is None or newest is None or now - newest <= rule.max_age:
        return
    shown = f"{newest.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    yield f"the newest {rule.column} is {shown}, more than {_span(rule.max_age)} ago"


def _span(age: timedelta) -> str:
    return f"{age.days} days" if age.days and not age.seconds else str(age)

"""Checking rows as they pass to staging: a bounded batch at a time, in the task that reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.arrow import arrow_schema
from tidegate.core.errors import ConfigError
from tidegate.core.names import fold_ascii
from tidegate.core.quality import ColumnRule, Findings, OnFailure, RowCheck, Rules
from tidegate.core.types import Column
from tidegate.spark.measures import Broken, Measure

if TYPE_CHECKING:
    import duckdb

REASON = "_tidegate_reason"
"""What quarantined rows carry beside their own columns."""

_EARLIEST, _LATEST = (end.replace(tzinfo=UTC) for end in (datetime.min, datetime.max))  # noqa: DTZ901 - it has

Breaks = Callable[[pa.RecordBatch], pa.BooleanArray]
"""Which rows of a batch break a rule."""


@dataclass(frozen=True)
class Sorted:
    """A batch after the checks."""

    passed: pa.BooleanArray | None
    """None: all rows go on."""
    reasons: pa.StringArray | None = None
    """Why the others do not, one text for each of them."""


class Screen:
    """The rules at work on the rows of one chunk. Sees the source's values, before any is masked."""

    def __init__(self, rules: Rules, columns: tuple[Column, ...], where: str) -> None:
        self._rules = rules
        self._schema = arrow_schema(columns)
        self._columns = columns
        self._where = where
        self._breaks: dict[str, Breaks] = {}
        for rule in rules.columns:
            self._breaks |= self._column(rule)
        for check in rules.checks:
            self._breaks[check.name] = _Condition(check, where)
        self._rows = 0
        self._nulls: Counter[str] = Counter()
        self._failed: Counter[str] = Counter(dict.fromkeys(self._breaks, 0))
        self._newest: datetime | None = None
        self.passed = 0

    def sort(self, batch: pa.RecordBatch) -> Sorted:
        """Count what is wrong; where rows are put aside, say which."""
        self._rows += batch.num_rows
        if self._rules.counts_nulls:
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                self._nulls[name] += column.null_count
        self._see_newest(batch)
        broken = {name: pc.fill_null(breaks(batch), False) for name, breaks in self._breaks.items()}  # noqa: FBT003
        for name, rows in broken.items():
            self._failed[name] += pc.sum(rows).as_py() or 0
        found = self._sorted(batch.num_rows, broken)
        self.passed += batch.num_rows if found.passed is None else pc.sum(found.passed).as_py() or 0
        return found

    @property
    def findings(self) -> Findings:
        return Findings(self._rows, tuple(self._nulls.items()), tuple(self._failed.items()), self._newest)

    def _sorted(self, rows: int, broken: dict[str, pa.BooleanArray]) -> Sorted:
        if self._rules.on_failure is not OnFailure.QUARANTINE:
            return Sorted(None)
        bad = pa.repeat(pa.scalar(False), rows)  # noqa: FBT003
        for each in broken.values():
            bad = pc.or_(bad, each)
        if not pc.any(bad).as_py():
            return Sorted(None)
        listed = {name: each.filter(bad).to_pylist() for name, each in broken.items()}
        reasons = [
            "; ".join(name for name in listed if listed[name][row]) for row in range(pc.sum(bad).as_py())
        ]
        return Sorted(pc.invert(bad), pa.array(reasons, pa.string()))

    def _column(self, rule: ColumnRule) -> dict[str, Breaks]:
        name = rule.column
        kind = self._schema.field(name).type
        found: dict[str, Breaks] = {}
        if rule.max_null_percentage == 0:
            found[f"{name} is there"] = lambda batch: pc.is_null(batch.column(name))
        for words, broken in self._measured(rule).items():
            found[words] = partial(_in_column, name, broken)
        if rule.matches is not None:
            found[f"{name} matches {rule.matches}"] = self._pattern(name, rule.matches, kind)
        return found

    def _measured(self, rule: ColumnRule) -> dict[str, Broken]:
        """The rules that compare values with others."""
        name, named = rule.column, (*rule.allowed, *filter(None, (rule.min, rule.max)))
        found: dict[str, Broken] = {}
        try:
            if rule.allowed:
                found[f"{name} is allowed"] = self._measure(name, ordered=False).not_among(rule.allowed)
            if rule.min is not None:
                found[f"{name} >= {rule.min}"] = self._measure(name).below(rule.min)
            if rule.max is not None:
                found[f"{name} <= {rule.max}"] = self._measure(name).above(rule.max)
        except pa.ArrowException as error:
            problem = f"{', '.join(named)} cannot be values of this column: {error}"
            raise self._wrong(name, problem) from error
        return found

    def _measure(self, name: str, *, ordered: bool = True) -> Measure:
        column = next(column for column in self._columns if column.name == name)
        try:
            return Measure.of(column, self._schema.field(name).type)
        except ValueError as error:
            if ordered:
                raise self._wrong(name, f"`min` and `max` cannot be checked: {error}") from error
            return Measure(self._schema.field(name).type)

    def _pattern(self, name: str, pattern: str, kind: pa.DataType) -> Breaks:
        if kind != pa.string():
            raise self._wrong(name, "`matches` is for text, and this column has none")
        try:
            pc.match_substring_regex(pa.array([""]), pattern)
        except pa.ArrowInvalid as error:
            raise self._wrong(name, f"`{pattern}` is not a regular expression: {error}") from error
        return lambda batch: pc.invert(pc.match_substring_regex(batch.column(name), pattern))

    def _wrong(self, column: str, problem: str) -> ConfigError:
        return ConfigError(problem, where=f"{self._where}: validation.columns.{column}")

    def _see_newest(self, batch: pa.RecordBatch) -> None:
        rule = self._rules.freshness
        if rule is None:
            return
        newest = pc.max(batch.column(rule.column))
        try:
            value: Any = newest.as_py()
        except (ValueError, OverflowError):  # before Python's calendar, or after it
            value = _LATEST if newest.value > 0 else _EARLIEST
        if value is None:
            return
        moment = value if isinstance(value, datetime) else datetime.combine(value, datetime.min.time())
        aware = moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(rule.zone))
        found = _in_utc(aware)
        self._newest = found if self._newest is None else max(self._newest, found)


def _in_column(name: str, broken: Broken, batch: pa.RecordBatch) -> pa.BooleanArray:
    return broken(batch.column(name))


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:  # the first and the last day of Python's calendar have no other zone
        return moment.replace(tzinfo=UTC)


class _Condition:
    """A user's condition, evaluated by a DuckDB that sees the batch and nothing else."""

    def __init__(self, check: RowCheck, where: str) -> None:
        self._check = check
        self._where = where
        self._connection: duckdb.DuckDBPyConnection | None = None

    def __call__(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        import duckdb

        connection, twins = self._open(), _twins(batch.schema.names)
        # Without them a check that names one fails, where DuckDB would take one column for the other.
        connection.register("batch", pa.Table.from_batches([batch]).drop_columns(twins))
        try:
            # The closing bracket stands on a line of its own: a condition may end in a comment.
            query = f"SELECT CAST(({self._check.sql}\n) AS BOOLEAN) AS holds FROM batch"
            found = connection.execute(query).to_arrow_table().column("holds").combine_chunks()
        except duckdb.Error as error:
            problem = f"the check does not work: {str(error).partition(chr(10))[0]}"
            alike = f"SQL cannot tell {' and '.join(twins)} apart: use rules under `columns`"
            place = f"{self._where}: {self._check.name}"
            raise ConfigError(problem, where=place, hint=alike if twins else None) from error
        finally:
            connection.unregister("batch")
        if len(found) != batch.num_rows:
            raise ConfigError(
                "a check is a condition on each row, and this one gives another number of answers",
                where=f"{self._where}: {self._check.name}",
            )
        return pc.invert(found)

    def _open(self) -> duckdb.DuckDBPyConnection:
        if self._connection is None:
            try:
                import duckdb
            except ModuleNotFoundError as error:
                raise ConfigError(
                    "checks in SQL need the package duckdb, which is not installed",
                    where=f"{self._where}: {self._check.name}",
                    hint="pip install 'tidegate[duckdb]'",
                ) from error
            self._connection = duckdb.connect(
                ":memory:",
                config={"threads": 1, "enable_external_access": False, "autoinstall_known_extensions": False},
            )
            self._connection.execute("SET TimeZone = 'UTC'")
            self._connection.execute("SET lock_configuration = true")
        return self._connection


def _twins(names: list[str]) -> list[str]:
    """Columns whose names differ by case alone."""
    folded = Counter(map(fold_ascii, names))
    return [name for name in names if folded[fold_ascii(name)] > 1]


def demand_rules(rules: Rules, columns: tuple[Column, ...], where: str) -> None:
    """Refuse rules that could not be checked, before anything is read."""
    names = {column.name for column in columns}
    wanted = [rule.column for rule in rules.columns]
    wanted += [rules.freshness.column] if rules.freshness else []
    for name in wanted:
        if name not in names:
            known = ", ".join(sorted(names))
            raise ConfigError(
                f"there is no column `{name}`", where=f"{where}: validation", hint=f"there are {known}"
            )
    schema = arrow_schema(columns)
    if rules.freshness and not pa.types.is_temporal(schema.field(rules.freshness.column).type):
        raise ConfigError(f"`{rules.freshness.column}` tells no time", where=f"{where}: validation.freshness")
    nothing = pa.RecordBatch.from_arrays([pa.array([], kind.type) for kind in schema], schema=schema)
    try:
        Screen(rules, columns, where).sort(nothing)
    except pa.ArrowException as error:
        problem = f"the rules do not fit the columns: {error}"
        raise ConfigError(problem, where=f"{where}: validation") from error

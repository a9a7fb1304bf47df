"""Rows are sorted as they pass."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tidegate.arrow import arrow_schema
from tidegate.core.errors import ConfigError
from tidegate.core.quality import ColumnRule, Freshness, OnFailure, RowCheck, Rules
from tidegate.core.types import Column, DataType, Kind
from tidegate.spark.screening import Screen, demand_rules

COLUMNS = (
    Column("id", DataType(Kind.UINT64)),
    Column("status", DataType(Kind.TEXT)),
    Column("price", DataType(Kind.DECIMAL, 9, 2)),
    Column("at", DataType(Kind.TIMESTAMP)),
)
WORDY = (
    *COLUMNS,
    Column("weight", DataType(Kind.TEXT), native="numeric"),
    Column("lasts", DataType(Kind.TEXT), native="interval"),
)
MORNING = datetime(2025, 8, 1, 6)  # noqa: DTZ001 - the column has no zone


def batch(*rows: tuple[Any, ...]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True))
    schema = arrow_schema(COLUMNS)
    return pa.record_batch(
        [pa.array(values, kind.type) for values, kind in zip(columns, schema, strict=True)], schema=schema
    )


ROWS = batch(
    (1, "open", Decimal("1.50"), MORNING),
    (2, "shut", Decimal("-1.00"), MORNING + timedelta(hours=1)),
    (3, None, None, None),
    (2**64 - 1, "OPEN", Decimal("99.00"), MORNING),
)


@pytest.mark.parametrize(
    ("rule", "broken"),
    [
        (ColumnRule("status", allowed=("open", "shut")), [3]),
        (ColumnRule("status", matches="^[a-z]+$"), [3]),
        (ColumnRule("price", min="0"), [1]),
        (ColumnRule("price", min="-1", max="98.99"), [3]),
        (ColumnRule("id", max="3"), [3]),
        (ColumnRule("at", min="2025-08-01 06:30:00"), [0, 3]),
        (ColumnRule("price", max_null_percentage=0), [2]),
        (RowCheck("sound", "price >= 0 OR status = 'shut' -- refunds"), []),
        (RowCheck("cheap", "price < 50 AND id < 18446744073709551615"), [3]),
    ],
)
def test_rows_that_break_a_rule_are_put_aside_with_the_reason(rule: Any, broken: list[int]) -> None:
    rules = Rules(
        OnFailure.QUARANTINE,
        columns=(rule,) if isinstance(rule, ColumnRule) else (),
        checks=(rule,) if isinstance(rule, RowCheck) else (),
    )
    screen = Screen(rules, COLUMNS, "shop/orders")
    found = screen.sort(ROWS)
    passed = [True] * 4 if found.passed is None else found.passed.to_pylist()
    assert [row for row, fine in enumerate(passed) if not fine] == broken
    assert len(found.reasons or ()) == len(broken)
    assert (screen.findings.rows, screen.passed) == (4, 4 - len(broken))
    assert sum(dict(screen.findings.failed).values()) == len(broken)


@pytest.mark.parametrize(
    ("native", "values", "rule", "broken"),
    [
        ("numeric", ["5", "-1", "100", "1e1", "0.000", None], {"min": "0", "max": "20"}, [1, 2]),
        ("decimal(65,30)", ["9.5", "NaN", "-Infinity", "x"], {"max": "10"}, [1, 3]),
        ("numeric(50,2)", ["1.00", "1.50", None], {"allowed": ("1", "2")}, [1]),
        ("time(6)", ["100:00:00", "-838:59:59.5", "09:00:00"], {"min": "00:00", "max": "20:00:00"}, [0, 1]),
        ("varchar(9)", ["b", "100", "a"], {"min": "20"}, [1]),
        ("interval", ["1 day", "1 year"], {"allowed": ("1 day",)}, [1]),
    ],
)
def test_what_travels_as_text_is_compared_as_what_it_is(
    native: str, values: list[str | None], rule: dict[str, Any], broken: list[int]
) -> None:
    column = Column("v", DataType(Kind.TEXT), native=native)
    screen = Screen(Rules(OnFailure.QUARANTINE, columns=(ColumnRule("v", **rule),)), (column,), "t")
    found = screen.sort(pa.record_batch([pa.array(values, pa.string())], names=["v"]))
    assert found.passed is not None
    assert [row for row, fine in enumerate(found.passed.to_pylist()) if not fine] == broken


@pytest.mark.parametrize("rule", [ColumnRule("v", min="0"), ColumnRule("v", min="-1", max="1")])
def test_what_is_no_number_is_in_no_range(rule: ColumnRule) -> None:
    column = Column("v", DataType(Kind.FLOAT64))
    screen = Screen(Rules(columns=(rule,)), (column,), "t")
    screen.sort(pa.record_batch([pa.array([float("nan"), 0.0, None])], names=["v"]))
    assert max(dict(screen.findings.failed).values()) == 1


def test_the_newest_may_be_outside_of_every_calendar() -> None:
    column = Column("at", DataType(Kind.DATE))
    for days, year in ((5_000_000, 9999), (-1_000_000, 1)):
        screen = Screen(Rules(freshness=Freshness("at", timedelta(days=1))), (column,), "t")
        screen.sort(pa.record_batch([pa.array([days, -1_000_001], pa.date32())], names=["at"]))
        assert screen.findings.newest is not None
        assert screen.findings.newest.year == year


def test_a_row_can_have_several_reasons() -> None:
    columns = (ColumnRule("price", min="0"), ColumnRule("status", allowed=("open",)))
    found = Screen(Rules(OnFailure.QUARANTINE, columns=columns), COLUMNS, "t").sort(ROWS)
    assert found.reasons is not None
    assert found.reasons.to_pylist() == ["price >= 0; status is allowed", "status is allowed"]


def test_without_a_quarantine_all_rows_go_on_and_are_counted() -> None:
    screen = Screen(Rules(columns=(ColumnRule("price", min="0"),)), COLUMNS, "t")
    for _ in range(2):
        assert screen.sort(ROWS).passed is None
    assert screen.findings.failed == (("price >= 0", 2),)


def test_missing_values_and_the_newest_are_found() -> None:
    rules = Rules(max_null_percentage=1, freshness=Freshness("at", timedelta(days=1), "Europe/Berlin"))
    screen = Screen(rules, COLUMNS, "t")
    screen.sort(ROWS)
    assert dict(screen.findings.nulls) == {"id": 0, "status": 1, "price": 1, "at": 1}
    assert screen.findings.newest == datetime(2025, 8, 1, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        (Rules(columns=(ColumnRule("nowhere", min="1"),)), "there is no column `nowhere`"),
        (Rules(columns=(ColumnRule("price", min="cheap"),)), "cannot be values of this column"),
        (Rules(columns=(ColumnRule("price", matches="x"),)), "is for text"),
        (Rules(columns=(ColumnRule("weight", min="cheap"),)), "cannot be values of this column"),
        (Rules(columns=(ColumnRule("lasts", max="2 days"),)), "`min` and `max` cannot be checked"),
        (Rules(columns=(ColumnRule("status", matches="("),)), "not a regular expression"),
        (Rules(checks=(RowCheck("c", "nowhere > 1"),)), "the check does not work"),
        (Rules(checks=(RowCheck("c", "price > 1; DROP TABLE batch"),)), "the check does not work"),
        (Rules(checks=(RowCheck("c", "count(*) > 1"),)), "another number of answers"),
        (
            Rules(checks=(RowCheck("c", "(SELECT count(*) > 0 FROM read_csv('/etc/passwd'))"),)),
            "does not work",
        ),
        (Rules(freshness=Freshness("status", timedelta(days=1))), "tells no time"),
    ],
)
def test_rules_that_cannot_be_checked_are_refused_beforehand(rules: Rules, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem.replace("(", r"\(")):
        demand_rules(rules, WORDY, "shop/orders")


def test_a_check_never_takes_one_column_for_another_whose_name_differs_by_case() -> None:
    columns = tuple(Column(name, DataType(Kind.INT64)) for name in ("id", "Total", "total"))
    values = [pa.array([1, 2]), pa.array([5, 5]), pa.array([-1, 5])]
    rows = pa.record_batch(values, schema=arrow_schema(columns))
    sound = Screen(Rules(checks=(RowCheck("sound", "id > 1"),)), columns, "shop/orders")
    sound.sort(rows)
    assert dict(sound.findings.failed) == {"sound": 1}

    with pytest.raises(ConfigError, match="the check does not work") as refused:
        demand_rules(Rules(checks=(RowCheck("low", "total > 0"),)), columns, "shop/orders")

    assert "SQL cannot tell Total and total apart" in str(refused.value.hint)

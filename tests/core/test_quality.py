"""What follows from what was found."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.quality import (
    ColumnRule,
    Evidence,
    Findings,
    Freshness,
    OnFailure,
    RowCount,
    Rules,
    Verdict,
    judge,
)

NOW = datetime(2025, 8, 1, 12, tzinfo=UTC)
counts = st.dictionaries(st.sampled_from("abc"), st.integers(0, 5), max_size=3).map(
    lambda d: tuple(d.items())
)
findings = st.builds(
    Findings, st.integers(0, 9), counts, counts, st.none() | st.datetimes(timezones=st.just(UTC))
)


def verdict(rules: Rules, found: Findings, **more: object) -> Verdict:
    return judge(rules, Evidence(found, NOW, **more))  # type: ignore[arg-type]


@given(findings, findings)
def test_findings_add_up_in_any_order(one: Findings, other: Findings) -> None:
    both, turned = one + other, other + one
    assert dict(both.nulls) == dict(turned.nulls)
    assert dict(both.failed) == dict(turned.failed)
    assert (both.rows, both.newest) == (turned.rows, turned.newest)
    assert Findings.from_json(both.to_json()) == both


@pytest.mark.parametrize(
    ("rules", "found", "said"),
    [
        (Rules(max_null_percentage=5), Findings(10, (("a", 1), ("b", 0))), ()),
        (
            Rules(max_null_percentage=5),
            Findings(10, (("a", 2), ("b", 0))),
            ("10.00 % of all values are missing, 5 % may be",),
        ),
        (
            Rules(columns=(ColumnRule("a", max_null_percentage=5), ColumnRule("b", max_null_percentage=50))),
            Findings(10, (("a", 2), ("b", 2))),
            ("20.00 % of the values of a are missing, 5 % may be",),
        ),
        (Rules(max_null_percentage=5), Findings(), ()),
        (
            Rules(freshness=Freshness("at", timedelta(days=1))),
            Findings(1, newest=NOW - timedelta(days=2)),
            ("the newest at is 2025-07-30 12:00:00 UTC, more than 1 days ago",),
        ),
        (Rules(freshness=Freshness("at", timedelta(days=1))), Findings(1, newest=NOW), ()),
        (Rules(freshness=Freshness("at", timedelta(days=1))), Findings(), ()),
        (
            Rules(freshness=Freshness("at", timedelta(days=1))),
            Findings(1),
            ("no row has a value in at, so nobody knows how old they are",),
        ),
    ],
)
def test_rules_of_all_rows_together(rules: Rules, found: Findings, said: tuple[str, ...]) -> None:
    assert verdict(rules, found) == Verdict(whole=said)


@pytest.mark.parametrize(
    ("rows", "earlier", "drifts"),
    [
        (100, [100, 100], False),
        (1, [100, 100], False),
        (100, [100, 90, 110], False),
        (151, [100, 100, 100], True),
        (49, [100, 100, 100], True),
        (100, [1, 1, 1, 100, 100, 100], False),
        (1, [0, 0, 0], True),
        (0, [0, 0, 0], False),
    ],
)
def test_a_run_is_compared_with_the_mean_of_those_before(rows: int, earlier: list[int], drifts: bool) -> None:  # noqa: FBT001
    rules = Rules(row_count=RowCount(50, runs=3))
    assert bool(verdict(rules, Findings(rows), earlier=earlier).whole) is drifts


def test_single_rows_are_told_from_all_of_them() -> None:
    found = verdict(Rules(unique_key=True), Findings(9, failed=(("x is allowed", 2), ("y", 0))), repeated=3)
    assert found.rows == ("2 of 9 rows break `x is allowed`",)
    assert found.whole == ("3 keys come more than once",)


def test_other_rules_have_another_fingerprint() -> None:
    assert Rules(OnFailure.WARN).fingerprint != Rules(OnFailure.FAIL).fingerprint
    assert Rules(max_null_percentage=2).fingerprint == Rules(max_null_percentage=2).fingerprint

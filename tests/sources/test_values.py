"""Values are read strictly."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.sources.values import (
    date_of,
    days_of,
    decimal_of,
    instant_of,
    microseconds_of,
    time_of,
    timestamp_of,
    written,
)


@given(st.datetimes())
def test_a_moment_comes_back_as_it_was_written(moment: datetime) -> None:
    assert timestamp_of(written(moment)) == moment
    assert instant_of(written(moment) + "+00") == moment.replace(tzinfo=UTC)
    assert date_of(written(moment)[:10]) == moment.date()
    assert time_of(written(moment)[11:]) == moment.time()
    since = moment - datetime(1970, 1, 1)  # noqa: DTZ001 - zoneless
    assert days_of(written(moment)[:10]) == since.days
    assert microseconds_of(written(moment)) == since // timedelta(microseconds=1)


def test_the_year_0_has_its_place_before_the_year_1() -> None:
    assert days_of("0000-12-31") == days_of("0001-01-01") - 1
    assert days_of("0000-02-29") == days_of("0001-01-01") - 366 + 31 + 28
    assert microseconds_of("0000-12-31 23:59:59.999999") == microseconds_of("0001-01-01 00:00:00") - 1


def test_a_number_has_plain_digits() -> None:
    assert [str(decimal_of(text)) for text in ("-1.50", "+.5", "7.", "1e3")] == ["-1.50", "0.5", "7", "1E+3"]


def test_a_fraction_may_have_any_number_of_digits() -> None:
    assert timestamp_of("2026-01-31T23:59:59.5").microsecond == 500000
    assert time_of("23:59:59.05") == time(23, 59, 59, 50000)
    assert date_of("0001-01-01") == date(1, 1, 1)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (date_of, "0000-00-00"),
        (date_of, "2026-02-30"),
        (date_of, "2026-2-3"),
        (date_of, "infinity"),
        (date_of, "0044-03-15 BC"),
        (date_of, "12026-01-01"),
        (date_of, "２０２６-01-01"),
        (timestamp_of, "2026-01-01"),
        (timestamp_of, "2026-01-01 00:00:00Z"),
        (timestamp_of, "2026-01-01 00:00:00.1234567"),
        (timestamp_of, "2026-01-01 24:00:00"),
        (timestamp_of, "0000-00-00 00:00:00"),
        (instant_of, "2026-01-01 00:00:00"),
        (instant_of, "2026-01-01 00:00:00+01"),
        (instant_of, "-infinity"),
        (days_of, "0000-00-01"),
        (days_of, "0000-02-30"),
        (microseconds_of, "0000-01-00 00:00:00"),
        (microseconds_of, "2026-01-01 24:00:00"),
        (decimal_of, "1_000"),
        (decimal_of, "１２"),
        (decimal_of, "NaN"),
        (decimal_of, " 1"),
        (decimal_of, "."),
        (time_of, "24:00:00"),
        (time_of, "-01:00:00"),
        (time_of, "838:59:59"),
    ],
)
def test_what_is_not_exactly_right_is_refused(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read(text)

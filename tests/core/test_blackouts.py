from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tidegate.core.blackouts import Blackout, blacked_out_until, next_blackout


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def until(now: str, *written: str, zone: str = "UTC") -> datetime | None:
    return blacked_out_until([Blackout.written(text, zone) for text in written], utc(now))


def following(now: str, *written: str, zone: str = "UTC") -> datetime | None:
    return next_blackout([Blackout.written(text, zone) for text in written], utc(now))


@pytest.mark.parametrize(
    ("now", "written", "expected"),
    [
        ("2025-06-04 07:59:59", "08:00-18:00", None),
        ("2025-06-04 08:00:00", "08:00-18:00", "2025-06-04 18:00"),
        ("2025-06-04 18:00:00", "08:00-18:00", None),
        ("2025-06-04 23:30:00", "22:00-06:00", "2025-06-05 06:00"),
        ("2025-06-04 05:30:00", "22:00-06:00", "2025-06-04 06:00"),
        ("2025-06-04 12:00:00", "00:00-24:00", None),  # every day of it, for ever
        ("2025-06-06 23:00:00", "Fri 22:00-06:00", "2025-06-07 06:00"),
        ("2025-06-07 05:00:00", "Fri 22:00-06:00", "2025-06-07 06:00"),
        ("2025-06-07 23:00:00", "Fri 22:00-06:00", None),
        ("2025-06-08 12:00:00", "Mon-Fri 08:00-18:00", None),
        ("2025-06-08 12:00:00", "sat, sunday 08:00-18:00", "2025-06-08 18:00"),
        ("2025-06-09 12:00:00", "Fri-Mon 08:00-18:00", "2025-06-09 18:00"),
        ("2025-06-04 12:00:05", "12:00:00-12:00:10", "2025-06-04 12:00:10"),
    ],
)
def test_hours_are_kept(now: str, written: str, expected: str | None) -> None:
    found = until(now, written)
    if written == "00:00-24:00":
        assert found is not None
        assert found > utc("2025-06-10")
    else:
        assert found == (None if expected is None else utc(expected))


def test_spans_that_touch_are_one() -> None:
    assert until("2025-06-04 09:00", "08:00-12:00", "12:00-18:00", "17:00-19:00") == utc("2025-06-04 19:00")


def test_the_next_one_is_found_by_the_clock_of_its_place() -> None:
    assert following("2025-06-04 05:00", "08:00-18:00", zone="Europe/Berlin") == utc("2025-06-04 06:00")
    assert following("2025-01-04 05:00", "08:00-18:00", zone="Europe/Berlin") == utc("2025-01-04 07:00")
    assert following("2025-06-04 07:00", "08:00-18:00", zone="Europe/Berlin") == utc("2025-06-04 07:00")
    assert following("2025-06-07 00:00", "Wed 08:00-09:00") == utc("2025-06-11 08:00")
    assert following("2025-06-07 00:00") is None


def test_a_span_over_the_change_of_the_clock_ends_when_the_clock_says_so() -> None:
    # Berlin's clock goes back at 01:00 UTC, so this night has an hour more.
    assert until("2025-10-25 22:00", "23:00-05:00", zone="Europe/Berlin") == utc("2025-10-26 04:00")
    assert until("2025-03-29 23:00", "23:00-05:00", zone="Europe/Berlin") == utc("2025-03-30 03:00")
    # It shows 02:15 twice, and both are to be left alone.
    assert until("2025-10-26 00:15", "01:00-02:30", zone="Europe/Berlin") == utc("2025-10-26 01:30")
    assert until("2025-10-26 01:15", "01:00-02:30", zone="Europe/Berlin") == utc("2025-10-26 01:30")
    assert until("2025-10-26 00:45", "02:30-04:00", zone="Europe/Berlin") == utc("2025-10-26 03:00")
    # In spring there is no 02:30: it is half an hour after the 02:00 at which the clock is set forward.
    assert until("2025-03-30 00:15", "01:00-02:30", zone="Europe/Berlin") == utc("2025-03-30 01:30")


@pytest.mark.parametrize(
    "text",
    ["", "8-18", "08:00", "08:00-08:00", "25:00-26:00", "08:60-09:00", "Mox 08:00-09:00", "24:00-01:00"],
)
def test_what_is_no_span_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected hours|is no"):
        Blackout.written(text, "UTC")

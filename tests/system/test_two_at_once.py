"""Two syncs of one table: one works, the other is told who does."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.system.conftest import Build, Place
from tidegate.core.errors import LeaseHeld, LeaseLost
from tidegate.core.watermark import StreamId
from tidegate.sync.result import TableStatus

ORDERS = StreamId("shop", "orders")


@pytest.fixture
def place(build: Build) -> Place:
    made = build("sqlite-duckdb")
    made.shop.create()
    made.shop.insert(20)
    made.configure()
    return made


def test_the_second_sync_is_told_who_holds_the_table_and_exits_3(place: Place) -> None:
    parts = place.parts()

    with parts.hold(ORDERS, lambda: datetime.now(UTC), lambda: "first"):
        result = place.sync()

    [table] = result.tables.values()
    assert table.status is TableStatus.HELD
    assert isinstance(table.error, LeaseHeld)
    assert str(parts.holder.pid) in str(table.error)
    assert result.exit_code == 3


def test_a_holder_that_went_silent_is_succeeded_after_expiry_and_its_late_write_is_fenced_off(
    place: Place,
) -> None:
    store = place.parts().store
    long_ago = datetime.now(UTC) - timedelta(minutes=10)
    elsewhere = replace(place.parts().holder, host="another machine", boot_id="unknown")
    stale = store.acquire(ORDERS, elsewhere, now=long_ago, ttl=timedelta(minutes=1), nonce="stale")

    place.synced()

    mark = place.mark()
    with pytest.raises(LeaseLost):
        store.write(mark, expected=store.read(ORDERS).version, lease=stale)
    place.agree()


def test_a_holder_elsewhere_that_may_still_live_is_respected(place: Place) -> None:
    store = place.parts().store
    elsewhere = replace(place.parts().holder, host="another machine", boot_id="unknown")
    store.acquire(ORDERS, elsewhere, now=datetime.now(UTC), ttl=timedelta(minutes=1), nonce="alive")

    assert place.sync().exit_code == 3

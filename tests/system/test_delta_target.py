"""A table of a source becomes a Delta table, and stays it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.system.conftest import Build, Place
from tests.system.shop import FULL_SYNC, HYBRID, LONG_AGO
from tidegate.core.errors import ConfigError
from tidegate.core.watermark import StreamId


@pytest.fixture
def place(build: Build) -> Place:
    made = build("sqlite-delta")
    made.shop.create()
    made.shop.insert(250)
    return made


def test_a_delta_table_follows_its_source(place: Place) -> None:
    place.configure(
        {"orders": {**HYBRID, "delta": {"partition_by": "customer", "cluster_by": ["id"]}}},
        processing={"batch_size": 100},
    )
    assert place.synced().rows_loaded == 250
    place.agree()
    place.shop.insert(10, first=1_000, at=LONG_AGO + timedelta(days=1))
    moved = "customer = 'moved', updated_at = '2025-01-03 00:00:00'"
    place.shop.execute(f"UPDATE orders SET {moved} WHERE id <= 5")
    assert place.synced().rows_extracted == 15
    place.agree()


def test_a_table_that_is_read_whole_is_replaced_and_a_mark_can_be_moved_back(place: Place) -> None:
    place.configure({"orders": FULL_SYNC})
    place.synced()
    place.shop.execute("DELETE FROM orders WHERE id > 100")
    place.synced()
    place.agree()
    place.by_hand().reset([StreamId("shop", "orders")], reason="again")
    place.synced()
    place.agree()


def test_a_column_to_lay_out_by_that_is_not_there_is_an_error_in_words(place: Place) -> None:
    place.configure({"orders": {**HYBRID, "delta": {"partition_by": "region"}}})
    [table] = place.sync().tables.values()
    assert isinstance(table.error, ConfigError)
    assert "there is no column `region` to lay out files by" in str(table.error)

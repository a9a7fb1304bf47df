"""A table travels from every source to every target, exactly once."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import NoReturn

import pytest

from tests.system.conftest import Place
from tests.system.shop import FULL_SYNC, ID_ONLY, LONG_AGO, TIMESTAMP_ONLY
from tidegate.spark.session import LazySession
from tidegate.sync.pipeline import Scope
from tidegate.sync.result import TableStatus


def test_a_first_sync_brings_every_row(place: Place) -> None:
    place.shop.insert(250)
    place.configure(processing={"batch_size": 100})

    result = place.synced()

    place.agree()
    assert (result.rows_extracted, result.rows_loaded, result.files_created) == (250, 250, 3)


def test_a_second_sync_brings_only_what_changed(place: Place) -> None:
    place.shop.insert(250)
    place.synced()
    place.shop.insert(10, first=1_000, at=LONG_AGO + timedelta(days=1))
    place.shop.execute(
        "UPDATE orders SET customer = 'renamed', updated_at = '2025-01-03 00:00:00' WHERE id <= 5"
    )

    result = place.synced()

    place.agree()
    assert result.rows_extracted == 15


def test_a_sync_without_news_starts_no_spark(place: Place) -> None:
    place.shop.insert(20)
    place.synced()

    class Forbidden(LazySession):
        def get(self) -> NoReturn:
            pytest.fail("Spark was started for nothing")

    place.session = partial(Forbidden, place.session().settings)  # type: ignore[method-assign]

    assert place.synced().status is TableStatus.NOTHING_NEW


@pytest.mark.parametrize("strategy", [TIMESTAMP_ONLY, ID_ONLY, FULL_SYNC], ids=lambda s: s["cdc_strategy"])
def test_other_strategies_bring_every_row_too(place: Place, strategy: dict[str, str]) -> None:
    place.shop.insert(120)
    place.configure({"orders": strategy}, processing={"batch_size": 50})
    place.synced()
    place.shop.insert(30, first=500, at=LONG_AGO + timedelta(days=1))

    place.synced()

    place.agree()


def test_extraction_and_loading_can_be_done_apart(place: Place) -> None:
    place.shop.insert(60)

    place.synced(scope=Scope.EXTRACT)
    assert place.mark().loaded.rows_total == 0
    assert sum(segment.rows for segment in place.mark().pending) == 60
    place.synced(scope=Scope.LOAD)

    place.agree()


def test_a_limit_stops_at_a_whole_position_and_the_next_sync_goes_on(place: Place) -> None:
    place.shop.insert(100)

    assert place.synced(limit=30).rows_extracted == 30
    place.synced()

    place.agree()

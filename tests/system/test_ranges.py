"""Ranges are read beside the mark: it stays where it is, and appended rows never come twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.system.conftest import Build, Place
from tests.system.shop import FULL_SYNC, HYBRID, ID_ONLY, LONG_AGO, TIMESTAMP_ONLY
from tests.system.test_resume import FullStaging
from tidegate.core.errors import StagingError, TargetError, UsageError
from tidegate.core.positions import Position
from tidegate.core.watermark import StreamId
from tidegate.core.windows import Window
from tidegate.sync import ranges
from tidegate.sync.marks import ByHand
from tidegate.sync.parts import Parts
from tidegate.sync.pipeline import Scope
from tidegate.sync.result import TableStatus

MINUTE = timedelta(minutes=1)
SIDE = "orders@ranges"


def _minute(number: int) -> str:
    return str(LONG_AGO + number * MINUTE)


@pytest.fixture(params=["merge", "append"])
def live(request: pytest.FixtureRequest, build: Build) -> Place:
    """Sixty minutes of orders, two in each, of which the first half was left out by the first sync."""
    return _live(build("sqlite-duckdb"), request.param)


@pytest.fixture
def appended(build: Build) -> Place:
    return _live(build("sqlite-duckdb"), "append")


def _live(place: Place, mode: str) -> Place:
    place.shop.create()
    for minute in range(60):
        place.shop.insert(2, first=1 + 2 * minute, at=LONG_AGO + (minute + 1) * MINUTE, step=timedelta(0))
    place.configure(
        {"orders": {**HYBRID, "write_mode": mode}},
        default_start=_minute(30),
        processing={"batch_size": 7},
        retries={"max": 0},
    )
    assert place.synced().rows_loaded == 60
    return place


def test_history_is_read_behind_a_live_mark_which_stays_where_it_is(
    live: Place, request: pytest.FixtureRequest
) -> None:
    before = live.mark()

    first = live.synced(low=_minute(10), high=_minute(20))
    second = live.synced(high=_minute(30))

    assert (first.rows_loaded, live.mark()) == (20, before)
    # Merging a range again is harmless, and may repair something; appending it again would double rows.
    assert second.rows_loaded == (60 if "[merge]" in request.node.name else 40)
    live.shop.insert(3, first=1_000, at=LONG_AGO + timedelta(days=1))
    assert live.synced().rows_extracted == 3
    live.agree()


def test_a_range_that_is_appended_is_never_read_twice(appended: Place) -> None:
    rows = [
        appended.synced(low=_minute(5), high=_minute(15)).rows_loaded,
        appended.synced(low=_minute(5), high=_minute(15)).rows_loaded,
        appended.synced(low=_minute(8), high=_minute(12)).rows_loaded,
        appended.synced(low=_minute(10), high=_minute(20)).rows_loaded,
        appended.synced(low=_minute(25), high="2099-01-01").rows_loaded,
        appended.synced(high="2099-01-01").rows_loaded,
    ]

    assert rows == [20, 0, 0, 10, 10, 20]
    appended.agree()
    appended.synced(high=_minute(9))
    assert "nothing of" in appended.notes.texts[-1]


def test_a_range_that_was_extracted_and_not_loaded_is_loaded_by_asking_for_it_again(live: Place) -> None:
    assert live.synced(high=_minute(30), scope=Scope.EXTRACT).rows_loaded == 0
    assert len(live.mark(SIDE).pending) > 0

    live.synced(high=_minute(30))

    live.agree()
    assert live.mark(SIDE).pending == ()


class Unwilling:
    """A target that lets nothing in."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def load(self, *_: Any, **__: Any) -> int:
        raise TargetError("not today")


@contextmanager
def _changed(place: Place, change: Callable[[Parts], Parts]) -> Iterator[None]:
    """Syncs go by other parts for a while."""
    place.parts = lambda: change(Place.parts(place))  # type: ignore[method-assign]
    yield
    del place.parts


def test_a_range_interrupted_before_its_load_is_made_whole_by_asking_again(live: Place) -> None:
    def unwilling(parts: Parts) -> Parts:
        opened = parts.open_target
        return replace(parts, open_target=lambda: Unwilling(opened()))

    with _changed(live, unwilling):
        assert live.sync(high=_minute(30)).exit_code == 1
    live.synced(high=_minute(30))
    live.synced(high=_minute(30))

    live.agree()


def test_a_range_interrupted_before_it_is_remembered_is_not_read_again(
    appended: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise StagingError("interrupted")

    with monkeypatch.context() as patch:
        # The first time nothing has been read yet.
        patch.setattr(ranges, "_remember", _second(interrupt, ranges._remember))  # noqa: SLF001
        assert appended.sync(high=_minute(30)).exit_code == 1
    assert appended.mark(SIDE).covered == ()

    assert appended.synced(high=_minute(30)).rows_extracted == 0
    appended.agree()


def _second(act: Callable[..., None], before: Callable[..., None]) -> Callable[..., None]:
    calls = []

    def call(*arguments: Any) -> None:
        calls.append(arguments)
        (act if len(calls) == 2 else before)(*arguments)

    return call


def test_an_interrupted_range_is_finished_before_another_one_is_read(live: Place) -> None:
    staged = len(list((live.folder / "staging").rglob("*.parquet")))
    full = FullStaging(live.folder / "staging", staged + 2)

    with _changed(live, lambda parts: replace(parts, staging=full)):
        assert live.sync(low=_minute(10), high=_minute(30)).exit_code == 1
    window = live.mark(SIDE).run
    assert window is not None
    assert window.state.open
    live.synced(high=_minute(10))

    live.agree()


def test_a_range_that_is_given_up_under_other_rules_is_appended_once(appended: Place) -> None:
    staged = len(list((appended.folder / "staging").rglob("*.parquet")))
    full = FullStaging(appended.folder / "staging", staged + 2)
    with _changed(appended, lambda parts: replace(parts, staging=full)):
        assert appended.sync(low=_minute(10), high=_minute(30)).exit_code == 1
    assert len(appended.mark(SIDE).pending) > 0
    judged = {**HYBRID, "write_mode": "append", "validation": {"columns": {"amount": {"min": 0}}}}
    appended.configure({"orders": judged}, default_start=_minute(30), processing={"batch_size": 7})

    appended.synced(low=_minute(10), high=_minute(30))
    appended.synced(high=_minute(30))

    appended.agree()


@pytest.mark.parametrize("act", [ByHand.reset, ByHand.reset_extracted])
def test_ranges_are_read_again_after_a_reset(appended: Place, act: Callable[..., object]) -> None:
    appended.synced(low=_minute(10), high=_minute(15))
    appended.synced(low=_minute(20), high=_minute(30))
    both = [StreamId("shop", "orders"), StreamId("shop", SIDE)]
    act(appended.by_hand(), both, reason="the warehouse was emptied")
    appended.warehouse.execute("DELETE FROM orders")

    rows = [appended.synced().rows_loaded, appended.synced(high=_minute(30)).rows_loaded]

    assert rows == [60, 60]
    appended.agree()


def test_a_range_below_the_mark_is_not_held_back_and_one_above_it_says_who_does(build: Build) -> None:
    place = build("postgres-duckdb")
    place.shop.create()
    place.shop.insert(30)
    place.configure({"orders": ID_ONLY}, ceiling={"max_wait": 0})
    place.synced()
    place.shop.execute("UPDATE orders SET customer = 'repaired' WHERE id BETWEEN 6 AND 10")
    with closing(place.shop.connect()) as other:
        other.cursor().execute("SELECT 1")
        place.shop.insert(5, first=100)

        below, above = place.synced(low="5", high="50"), place.synced(low="100", high="104")

    assert (below.rows_loaded, below.window) == (25, Window(Position.of(5), Position.of(30)))
    assert (above.rows_loaded, above.window) == (0, None)
    assert "can be read yet: it is held back by transaction" in place.notes.texts[-1]
    place.synced()
    place.agree()


def test_a_range_ends_at_the_ceiling_and_what_comes_later_is_the_marks_to_bring(live: Place) -> None:
    live.synced(high="2099-12-31")
    live.shop.insert(4, first=1_000, at=LONG_AGO + timedelta(days=1))
    live.synced()

    live.agree()


@pytest.mark.parametrize("source", ["mariadb", "postgres"])
def test_ranges_of_servers_are_appended_once(build: Build, source: str) -> None:
    place = _live(build(f"{source}-duckdb"), "append")

    place.synced(low=_minute(10), high=_minute(40))
    place.synced(high=_minute(50))

    place.agree()


def test_a_range_of_ids_is_read_by_id(build: Build) -> None:
    place = build("sqlite-duckdb")
    place.shop.create()
    place.shop.insert(30)
    place.configure({"orders": ID_ONLY}, processing={"batch_size": 4})
    place.synced()
    place.shop.execute("UPDATE orders SET customer = 'repaired' WHERE id BETWEEN 6 AND 10")

    assert place.synced(low="5", high="10").rows_loaded == 5

    place.agree()


def test_the_gap_behind_a_mark_that_was_set_ahead_is_filled_once(build: Build) -> None:
    place = build("sqlite-duckdb")
    place.shop.create()
    place.shop.insert(30)
    place.configure({"orders": {**TIMESTAMP_ONLY, "write_mode": "append"}}, processing={"batch_size": 4})
    place.synced(limit=10)
    ahead = Position.of(LONG_AGO + timedelta(seconds=19))
    place.by_hand().move(StreamId("shop", "orders"), ahead, cursor=("updated_at",), reason="hurry")
    assert place.synced().rows_extracted == 10

    assert place.synced(high="2099-01-01").rows_extracted == 10
    assert place.synced(high="2099-01-01").rows_extracted == 0

    place.agree()


def test_ranges_up_to_now_can_be_asked_for_again_though_only_the_database_orders_the_ids(
    build: Build,
) -> None:
    place = build("sqlite-duckdb")
    place.shop.execute(
        "CREATE TABLE words (id TEXT NOT NULL PRIMARY KEY, updated_at DATETIME NOT NULL);"
        "INSERT INTO words SELECT 'm' || n, '2025-01-01 00:00:00' FROM " + place.shop.numbers(20)
    )
    place.configure({"words": HYBRID})
    place.synced()
    place.synced(low="2024-01-01")
    place.shop.execute("INSERT INTO words VALUES ('z', '2025-01-01 00:00:00'), ('a', '2025-01-01 00:00:00')")

    place.synced(low="2024-01-01")

    place.same("words", "id")
    assert len(place.mark("words@ranges").covered) == 1


def test_a_range_to_append_needs_a_mark_to_know_what_is_left(build: Build) -> None:
    place = build("sqlite-duckdb")
    place.shop.create()
    place.shop.insert(5)
    place.configure({"orders": {**HYBRID, "write_mode": "append"}})

    [table] = place.sync(high=_minute(1)).tables.values()

    assert isinstance(table.error, UsageError)
    assert "sync the table first" in str(table.error)


def test_a_table_that_is_read_whole_has_no_ranges(build: Build) -> None:
    place = build("sqlite-duckdb")
    place.shop.create()
    place.configure({"orders": FULL_SYNC})

    [table] = place.sync(high=_minute(1)).tables.values()

    assert table.status is TableStatus.FAILED
    assert isinstance(table.error, UsageError)

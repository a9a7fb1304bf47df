"""Two syncs of one table: one works, the other is told who does."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.system.conftest import Build, Place
from tests.system.shop import ID_ONLY
from tidegate.config.project import Project
from tidegate.core.errors import LeaseHeld, LeaseLost
from tidegate.core.names import RULES
from tidegate.core.positions import Position
from tidegate.core.types import Schema
from tidegate.core.watermark import StreamId
from tidegate.state.hold import HeldStream
from tidegate.sync.job import target_table
from tidegate.sync.loading import Loader
from tidegate.sync.naming import Naming
from tidegate.sync.pipeline import Scope
from tidegate.sync.progress import Silence
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


# --- A run that stood still while somebody moved the mark by hand ---------------------------------------


class Sleeper:
    """A run elsewhere that stands still in front of its load: its clock has stopped, its lease runs out."""

    def __init__(self, place: Place) -> None:
        parts = place.parts()
        then = datetime.now(UTC) - timedelta(minutes=10)
        elsewhere = replace(parts.holder, host="another machine", boot_id="unknown")
        ttl = timedelta(minutes=1)
        lease = parts.store.acquire(ORDERS, elsewhere, now=then, ttl=ttl, nonce="asleep")
        self._held = HeldStream(parts.store, parts.store.read(ORDERS), lease, clock=lambda: then, ttl=ttl)
        naming = Naming(RULES["duckdb"], {}, parts.store)
        self._loader = Loader(parts.staging, parts.target, naming, Silence(), lambda: then)
        settings = Project.load(place.folder).pipeline("shop").settings_for("orders")
        schema = Schema.from_json(dict(self._held.mark.schemas)[self._held.mark.pending[-1].schema])
        self._table = target_table(settings, ORDERS, schema)

    def load(self) -> None:
        self._loader.load(self._held, self._table)


@pytest.fixture
def waiting(place: Place) -> Place:
    """An appended table whose rows are staged and not loaded."""
    place.configure({"orders": {**ID_ONLY, "write_mode": "append"}})
    place.synced(scope=Scope.EXTRACT)
    return place


def test_a_load_that_slept_while_the_mark_was_moved_back_is_refused_and_doubles_nothing(
    waiting: Place,
) -> None:
    sleeper = Sleeper(waiting)
    waiting.by_hand().reset([ORDERS], reason="read it all again")

    with pytest.raises(LeaseLost, match="moved by hand"):
        sleeper.load()

    waiting.synced()
    waiting.agree()


def test_a_load_that_slept_while_files_were_loaded_again_is_refused_and_doubles_nothing(
    waiting: Place,
) -> None:
    sleeper = Sleeper(waiting)
    waiting.by_hand().reset_loaded(ORDERS, waiting.parts().staging, replaced=False, reason="once more")

    with pytest.raises(LeaseLost, match="moved by hand"):
        sleeper.load()

    waiting.synced()
    waiting.agree()


def test_what_was_loaded_just_before_the_mark_is_moved_counts_as_loaded(waiting: Place) -> None:
    """A run that died behind the commit at the target has loaded what its state still calls pending."""
    sleeper = Sleeper(waiting)
    with pytest.raises(LeaseLost):
        _take_over_between_the_commits(waiting, sleeper)
    assert waiting.mark().pending != ()

    waiting.by_hand().move(ORDERS, Position.of(20), cursor=("id",), reason="on from here")

    assert waiting.mark().pending == ()
    assert waiting.mark().loaded.rows_total == 20
    waiting.synced()
    waiting.agree()


def _take_over_between_the_commits(place: Place, sleeper: Sleeper) -> None:
    """Let the sleeper load, and fail to say so: somebody else has the lease by then."""
    parts = place.parts()
    now = datetime.now(UTC)
    lease = parts.store.acquire(ORDERS, parts.holder, now=now, ttl=timedelta(minutes=1), nonce="next")
    parts.store.release(ORDERS, lease)
    sleeper.load()

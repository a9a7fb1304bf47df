"""State that was made under one configuration is never misread under another."""

from __future__ import annotations

import shutil
import time
from datetime import UTC, datetime

import pytest

from tests.servers import Server
from tests.system.conftest import Build, Place
from tests.system.shop import FULL_SYNC, HYBRID, ID_ONLY, LONG_AGO
from tidegate.core.errors import ConfigError, StateError, TargetError, UsageError
from tidegate.core.positions import Position
from tidegate.core.watermark import StreamId
from tidegate.sync.pipeline import Scope

ORDERS = StreamId("shop", "orders")


@pytest.fixture
def place(build: Build) -> Place:
    made = build("sqlite-duckdb")
    made.shop.create()
    made.shop.insert(10)
    return made


def test_news_that_is_pending_is_not_loaded_as_the_whole_table(place: Place) -> None:
    place.configure({"orders": ID_ONLY})
    place.synced()
    place.shop.insert(5, first=100)
    place.synced(scope=Scope.EXTRACT)
    place.configure({"orders": FULL_SYNC})

    [table] = place.sync(scope=Scope.LOAD).tables.values()

    assert isinstance(table.error, ConfigError)
    assert len(place.warehouse.rows()) == 10
    place.configure({"orders": ID_ONLY})
    place.synced(scope=Scope.LOAD)
    place.agree()


def test_a_mark_is_not_set_into_the_middle_of_a_pending_segment(place: Place) -> None:
    place.configure({"orders": {**ID_ONLY, "write_mode": "append"}})
    place.synced(scope=Scope.EXTRACT)

    with pytest.raises(UsageError, match="reaches across"):
        place.by_hand().move(ORDERS, Position.of(5), cursor=("id",), reason="a test")

    place.synced()
    place.agree()


def test_a_backup_that_is_restored_cannot_make_a_later_reload_pass_for_done(place: Place) -> None:
    place.configure()
    place.synced()
    saved = place.mark()
    hand, staging = place.by_hand(), place.parts().staging
    hand.reset_loaded(ORDERS, staging, replaced=False, reason="first reload")
    place.synced(scope=Scope.LOAD)
    hand.restore([saved], reason="restored")
    place.warehouse.execute("DELETE FROM orders")

    hand.reset_loaded(ORDERS, staging, replaced=False, reason="second reload")
    place.synced(scope=Scope.LOAD)

    place.agree()


def test_what_was_read_again_after_a_reset_is_reloaded_once(place: Place) -> None:
    place.configure({"orders": {**ID_ONLY, "write_mode": "append"}})
    place.synced()
    hand = place.by_hand()
    hand.reset_extracted([ORDERS], reason="read again")
    place.warehouse.execute("DELETE FROM orders")
    place.synced()
    place.warehouse.execute("DELETE FROM orders")

    hand.reset_loaded(ORDERS, place.parts().staging, replaced=False, reason="load again")
    place.synced(scope=Scope.LOAD)

    place.agree()


def test_rows_that_a_look_back_brought_are_not_brought_by_a_backfill_too(place: Place) -> None:
    place.configure({"orders": {**ID_ONLY, "write_mode": "append"}}, ceiling={"lookback_ids": 5})
    place.by_hand().move(ORDERS, Position.of(7), cursor=("id",), reason="begin here")
    place.synced()

    place.synced(high="7")

    place.agree()


def test_a_table_that_was_renamed_at_the_target_is_not_begun_again_with_the_news_alone(place: Place) -> None:
    place.configure()
    place.synced()
    place.shop.insert(2, first=50, at=LONG_AGO.replace(month=5))
    place.configure({"orders": {**HYBRID, "target_name": "elsewhere"}})

    [table] = place.sync().tables.values()

    assert isinstance(table.error, TargetError)
    assert "elsewhere" in str(table.error)
    place.configure()
    place.synced()
    place.agree()


def test_a_cursor_column_of_another_type_stops_its_table_and_no_other(build: Build) -> None:
    place = build("mariadb-duckdb")
    place.shop.create()
    place.shop.insert(3)
    place.shop.execute("CREATE TABLE zed (id INT PRIMARY KEY); INSERT INTO zed VALUES (1)")
    tables = {"orders": HYBRID, "zed": ID_ONLY}
    place.configure(tables)
    place.sync()
    place.shop.execute("ALTER TABLE orders MODIFY updated_at TIMESTAMP(6) NOT NULL")
    place.shop.execute("INSERT INTO zed VALUES (2)")

    result = place.sync()

    assert isinstance(result.tables["orders"].error, ConfigError)
    assert "updated_at" in str(result.tables["orders"].error)
    assert result.tables["zed"].rows_loaded == 1


def test_a_query_of_the_users_finds_ids_above_all_signed_numbers(build: Build) -> None:
    place = build("mariadb-duckdb")
    place.shop.create()
    place.shop.insert(3)
    place.shop.insert(2, first=2**63 + 5)
    query = "SELECT * FROM orders WHERE id > {low} AND id <= {high}"
    place.configure(
        {"own": {"cdc_strategy": "custom_sql", "query": query, "cdc_id_column": "id", "keys": ["id"]}}
    )

    place.synced()

    assert place.warehouse.rows("own") == place.shop.rows()


def test_many_rounds_of_chunks_are_one_snapshot(build: Build) -> None:
    place = build("sqlite-duckdb")
    place.shop.create()
    place.shop.insert(600)
    place.configure({"orders": FULL_SYNC}, processing={"batch_size": 2})

    place.synced()

    place.agree()


# --- with a user who may not see the transactions of others ----------------------------------------------

BLIND = {"max_wait": 1, "lag": 0.2, "fallback_lag": 3}
INSERT = "INSERT INTO orders (customer, amount, updated_at) VALUES ('x', 1, NOW(6))"


@pytest.fixture
def blind(build: Build) -> Place:
    place = build("mariadb-duckdb")
    place.shop.create()
    server = place.shop.server
    assert isinstance(server, Server)
    server.execute("CREATE OR REPLACE USER blind IDENTIFIED BY 'blind'")
    server.execute(f"GRANT SELECT ON `{server.database}`.* TO blind")
    place.sources = {"shop": server.logged_in_as("blind", "blind").config}
    return place


def test_append_that_could_not_tell_versions_apart_is_refused(blind: Place) -> None:
    blind.configure(
        {"orders": {**HYBRID, "write_mode": "append", "columns": {"exclude": ["updated_at"]}}}, ceiling=BLIND
    )
    blind.shop.insert(3, at=LONG_AGO)

    [table] = blind.sync().tables.values()

    assert isinstance(table.error, ConfigError)
    assert "GRANT PROCESS" in str(table.error)


def test_a_row_that_committed_late_is_found_though_the_table_went_quiet(blind: Place) -> None:
    blind.configure({"orders": HYBRID}, ceiling=BLIND)
    began = datetime.now(UTC)
    blind.clock = lambda: (
        began
    )  # for the sync no time passes: it is not so long ago that it need not look back
    late = blind.shop.connect()
    late.cursor().execute(INSERT)
    time.sleep(0.5)
    blind.shop.execute(INSERT)
    time.sleep(3.5)
    blind.synced()
    late.commit()
    late.close()

    blind.synced()

    blind.agree()


@pytest.fixture
def appended(place: Place) -> Place:
    place.configure({"orders": {**HYBRID, "write_mode": "append"}})
    place.synced()
    return place


@pytest.mark.parametrize(
    "scopes", [[Scope.BOTH], [Scope.EXTRACT, Scope.LOAD]], ids=["at once", "in two steps"]
)
def test_appending_goes_on_after_a_loss_of_state_only_when_somebody_says_where(
    appended: Place, scopes: list[Scope]
) -> None:
    shutil.rmtree(appended.folder / "state")
    appended.shop.insert(2, first=50, at=LONG_AGO.replace(month=5))

    error = [table.error for scope in scopes for table in appended.sync(scope=scope).tables.values()][-1]

    assert isinstance(error, StateError)
    assert "watermark set" in str(error)
    assert len(appended.warehouse.rows()) == 10
    last = Position.of(max(row[-1] for row in appended.warehouse.rows()))
    appended.by_hand().reset([ORDERS], reason="give up what was read again")
    appended.by_hand().move(ORDERS, last, cursor=("updated_at", "id"), reason="the target's last row")
    appended.synced()
    appended.agree()


def test_appending_does_not_go_on_from_an_older_state(appended: Place) -> None:
    shutil.copytree(appended.folder / "state", appended.folder / "saved")
    appended.shop.insert(2, first=50, at=LONG_AGO.replace(month=5))
    appended.synced()
    shutil.rmtree(appended.folder / "state")
    (appended.folder / "saved").rename(appended.folder / "state")

    [table] = appended.sync().tables.values()

    assert isinstance(table.error, StateError)
    appended.agree()


def test_a_target_table_that_was_emptied_may_be_filled_without_the_state_it_had(appended: Place) -> None:
    shutil.rmtree(appended.folder / "state")
    appended.warehouse.execute("DELETE FROM orders")

    appended.synced()

    appended.agree()


def test_a_new_table_says_so_if_it_appends_to_rows_of_others(appended: Place) -> None:
    appended.warehouse.execute("DELETE FROM _tidegate_loads")
    shutil.rmtree(appended.folder / "state")

    appended.synced()

    there = "no sync of shop/orders has brought the 10 rows that are in orders"
    assert f"{there}: what is read now is appended to them" in appended.notes.texts

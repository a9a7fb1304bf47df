"""Tables that change their columns at the source, at every moment of a run."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from click.testing import CliRunner

from tests.system.conftest import Build, Place
from tests.system.shop import HYBRID, ID_ONLY, LONG_AGO
from tests.system.test_resume import FullStaging
from tidegate.cli.root import tidegate
from tidegate.core.errors import SchemaChanged
from tidegate.core.watermark import StreamId
from tidegate.sync.pipeline import Scope

LATER = LONG_AGO + timedelta(days=1)
_TYPE = {"mysql": "ALTER TABLE {0} MODIFY {1} {2}", "postgresql": "ALTER TABLE {0} ALTER COLUMN {1} TYPE {2}"}


def retype(place: Place, column: str, kind: str, table: str = "orders") -> None:
    place.shop.run(_TYPE[place.shop.kind].format(table, column, kind))


def events(place: Place, kind: str) -> list[dict[str, Any]]:
    history = place.parts().store.history(StreamId("shop", "orders"))
    return [event.data for event in history if event.kind == kind]


def command(place: Place, *args: str) -> str:
    done = CliRunner().invoke(tidegate, ["--project", str(place.folder), *args])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("route", ["mariadb-postgres", "postgres-duckdb"])
def test_columns_are_added_widened_and_dropped(build: Build, route: str) -> None:
    place = build(route)
    place.shop.create()
    place.shop.run("ALTER TABLE orders ADD COLUMN stock INT")
    place.configure()
    place.shop.insert(3)
    place.shop.run("UPDATE orders SET stock = id")
    place.synced()
    retype(place, "stock", "BIGINT")
    retype(place, "amount", "DECIMAL(20,4)")
    place.shop.run("ALTER TABLE orders ADD COLUMN colour VARCHAR(20) DEFAULT 'blue'")
    place.shop.run("ALTER TABLE orders DROP COLUMN note")
    row = f"(4, 'x', 1.2345, {2**40}, '{LATER}')"
    place.shop.run(f"INSERT INTO orders (id, customer, amount, stock, updated_at) VALUES {row}")
    place.shop.run(f"UPDATE orders SET updated_at = '{LATER}' WHERE id = 1")

    result = place.synced()

    found = place.warehouse.execute("SELECT id, stock, amount, colour, note IS NULL FROM orders ORDER BY id")
    assert [(n, stock, str(amount), colour, gone) for n, stock, amount, colour, gone in found] == [
        (1, 1, "1.0100", "blue", True),
        (2, 2, "2.0200", None, True),
        (3, 3, "3.0300", None, True),
        (4, 2**40, "1.2345", "blue", True),
    ]
    changes = "\n".join(result.schema_changes)
    for word in ("column colour (", "column note is gone", "column stock (", "column amount ("):
        assert word in changes
    [changed] = events(place, "schema changed")
    assert changed["after"] == place.mark().schema == events(place, "planned")[-1]["schema"]
    assert changed["before"] == events(place, "planned")[0]["schema"]
    assert "column colour" in command(place, "watermark", "history", "-t", "orders")


@pytest.mark.parametrize("route", ["mariadb-postgres", "postgres-duckdb"])
def test_decimals_that_outgrow_the_target_and_labels_that_become_text_go_on(build: Build, route: str) -> None:
    place = build(route)
    place.shop.create()
    place.configure()
    label = "ENUM('new')"
    if place.shop.kind == "postgresql":
        place.shop.run("CREATE TYPE state AS ENUM ('new')")
        label = "state"
    place.shop.run("ALTER TABLE orders DROP COLUMN amount")
    place.shop.run(f"ALTER TABLE orders ADD COLUMN amount DECIMAL(38,2), ADD COLUMN state {label}")
    insert = "INSERT INTO orders (id, customer, amount, state, updated_at) VALUES ({}, 'x', {}, '{}', '{}')"
    place.shop.run(insert.format(1, "-1.10", "new", LONG_AGO))
    place.synced()
    place.shop.run(insert.format(2, 0, "new", LATER))
    place.synced(scope=Scope.EXTRACT)
    retype(place, "amount", "DECIMAL(40,2)")
    retype(place, "state", "TEXT")
    wide = "9" * 38 + ".99"
    place.shop.run(insert.format(3, wide, "brand new", LATER + timedelta(days=1)))

    result = place.synced()

    assert place.warehouse.execute("SELECT id, amount, state FROM orders ORDER BY id") == [
        (1, "-1.10", "new"),
        (2, "0.00", "new"),
        (3, wide, "brand new"),
    ]
    assert any("40,2) now) is wider, and travels as text now" in told for told in result.schema_changes)


@pytest.mark.parametrize(("route", "kind"), [("mariadb-duckdb", "INT"), ("postgres-postgres", "TEXT")])
def test_a_narrower_or_other_type_stops_that_table_alone(build: Build, route: str, kind: str) -> None:
    place = build(route)
    place.shop.create()
    place.shop.run("ALTER TABLE orders ADD COLUMN stock BIGINT")
    place.shop.run("CREATE TABLE other (id INT PRIMARY KEY)")
    place.configure({"orders": HYBRID, "other": ID_ONLY})
    place.shop.insert(2)
    assert place.sync().exit_code == 0
    before = place.mark()
    retype(place, "stock", kind)
    place.shop.insert(1, first=3, at=LATER)
    place.shop.run("INSERT INTO other VALUES (1)")

    result = place.sync()

    error = result.tables["orders"].error
    assert isinstance(error, SchemaChanged)
    assert "it was (id bigint" in str(error)
    assert f"stock {kind.lower()}" in str(error).rpartition("and is (")[2]
    assert result.tables["other"].rows_loaded == 1
    assert replace(place.mark(), last_error=None, updated_at=before.updated_at) == before
    assert "columns accept" in str(error)
    if kind == "TEXT":
        place.warehouse.execute("ALTER TABLE orders ALTER COLUMN stock TYPE text")
    assert "accepted" in command(place, "columns", "accept", "-t", "orders", "--reason", "we know")
    assert place.sync().exit_code == 0
    place.agree()
    assert [event["act"] for event in events(place, "manual")] == ["accept"]


def test_pending_files_of_an_older_schema_still_load(build: Build) -> None:
    place = build("sqlite-duckdb")
    place.shop.create()
    place.configure()
    place.shop.insert(3)
    place.synced(scope=Scope.EXTRACT)
    place.shop.run("ALTER TABLE orders ADD COLUMN colour TEXT")
    place.shop.run("ALTER TABLE orders DROP COLUMN note")
    place.shop.run(f"UPDATE orders SET colour = 'red', updated_at = '{LATER}' WHERE id = 2")
    place.synced()
    assert place.warehouse.execute("SELECT id, colour FROM orders ORDER BY id") == [
        (1, None),
        (2, "red"),
        (3, None),
    ]


def test_a_column_that_comes_back_says_what_old_rows_keep_and_another_type_stops(build: Build) -> None:
    place = build("postgres-duckdb")
    place.shop.create()
    place.configure()
    place.shop.insert(2)
    place.shop.run("UPDATE orders SET note = 'old'")
    place.synced()
    insert = "INSERT INTO orders (id, customer, amount, updated_at) VALUES ({}, 'x', 1, '{}')"
    place.shop.run("ALTER TABLE orders DROP COLUMN note")
    place.shop.run(insert.format(3, LATER))
    place.synced()
    place.shop.run("ALTER TABLE orders ADD COLUMN note TEXT DEFAULT 'new'")
    place.shop.run(f"UPDATE orders SET updated_at = '{LATER + timedelta(days=1)}' WHERE id = 1")

    result = place.synced()

    kept = "orders has a column note already: rows that were loaded before keep what is in it"
    assert kept in result.schema_changes
    found = place.warehouse.execute("SELECT id, note FROM orders ORDER BY id")
    assert found == [(1, "new"), (2, "old"), (3, None)]
    place.shop.run("ALTER TABLE orders DROP COLUMN note")
    place.shop.run(insert.format(4, LATER + timedelta(days=2)))
    place.synced()
    place.shop.run("ALTER TABLE orders ADD COLUMN note INTEGER DEFAULT 7")
    place.shop.run(insert.format(5, LATER + timedelta(days=3)))
    before = place.mark().extracted.position
    [stopped] = place.sync().tables.values()
    assert "column note: the rows bring int32" in str(stopped.error)
    assert place.mark().extracted.position == before


def test_a_column_that_somebody_dropped_at_the_target_is_not_made_again_in_silence(build: Build) -> None:
    place = build("sqlite-duckdb")
    place.shop.create()
    place.configure()
    place.shop.insert(2)
    place.shop.run("UPDATE orders SET note = 'n'")
    place.synced()
    place.warehouse.execute("ALTER TABLE orders DROP COLUMN note")
    place.warehouse.execute("ALTER TABLE orders ALTER COLUMN customer TYPE BLOB")
    place.shop.insert(1, first=7, at=LATER)
    [stopped] = place.sync().tables.values()
    assert "column customer: the rows bring text (VARCHAR), the table has BLOB" in str(stopped.error)
    place.warehouse.execute("ALTER TABLE orders ALTER COLUMN customer TYPE VARCHAR")

    place.synced()

    assert place.warehouse.execute("SELECT id, note IS NULL FROM orders ORDER BY id") == [
        (1, True),
        (2, True),
        (7, False),
    ]
    assert "column note is added to orders: rows that are there have NULL in it" in place.notes.texts


@pytest.mark.parametrize("write_mode", ["append", "merge"])
def test_a_change_while_a_run_is_interrupted(build: Build, write_mode: str) -> None:
    place = build("sqlite-duckdb")
    place.shop.create()
    small = {"batch_size": 2, "parallelism": 1}
    place.configure({"orders": {**HYBRID, "write_mode": write_mode}}, processing=small)
    place.shop.insert(6)
    place.shop.run("UPDATE orders SET note = 'n'")
    full = FullStaging(place.folder / "staging", 1)
    place.parts = lambda: replace(Place.parts(place), staging=full)  # type: ignore[method-assign]
    assert place.sync().exit_code == 1
    del place.parts
    assert place.mark().open_run is not None
    place.shop.run("ALTER TABLE orders ADD COLUMN colour TEXT DEFAULT 'blue'")
    place.shop.run("ALTER TABLE orders DROP COLUMN note")
    result = place.synced()
    assert any("colour" in change for change in result.schema_changes)
    found = place.warehouse.execute("SELECT id, note, colour FROM orders ORDER BY id")
    assert found == [(n, "n", None) if n < 3 else (n, None, "blue") for n in range(1, 7)]


def test_a_table_that_is_replaced_follows_narrower_types(build: Build) -> None:
    """It is read whole, so nothing of what was read before is left."""
    place = build("postgres-duckdb")
    place.shop.create()
    place.configure({"orders": {"cdc_strategy": "full_sync"}})
    place.shop.insert(2)
    place.synced()
    retype(place, "id", "INT")
    place.shop.run("ALTER TABLE orders ADD COLUMN colour TEXT DEFAULT 'blue'")
    place.shop.run("ALTER TABLE orders DROP COLUMN note")
    result = place.synced()
    assert any("is narrower" in change for change in result.schema_changes)
    assert place.warehouse.execute("SELECT id, note, colour FROM orders ORDER BY id") == [
        (1, None, "blue"),
        (2, None, "blue"),
    ]

"""Values that do not fit, through the whole product: stopped, made NULL and counted, or carried as text."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from click.testing import CliRunner

from tests.system.conftest import Build, Place
from tests.system.shop import FULL_SYNC, HYBRID, LONG_AGO
from tests.system.test_resume import FullStaging
from tidegate.cli.root import tidegate
from tidegate.core.errors import LossyValue
from tidegate.sync.pipeline import Scope
from tidegate.sync.result import TableStatus

ZERO = "SET sql_mode = '';UPDATE orders SET born = '0000-00-00' WHERE id IN ({})"
SMALL = {"batch_size": 2, "parallelism": 1}


def begun(build: Build, route: str, rows: int, *zero: int) -> Place:
    """Orders with a date of birth, which is no date in some of them."""
    place = build(route)
    place.shop.create()
    place.shop.run("ALTER TABLE orders ADD COLUMN born DATE NOT NULL DEFAULT '2000-02-29'")
    place.shop.insert(rows)
    if zero:
        place.shop.execute(ZERO.format(", ".join(map(str, zero))))
    return place


def births(place: Place) -> list[Any]:
    found = place.warehouse.execute("SELECT CAST(born AS VARCHAR(20)) FROM orders ORDER BY id")
    return [born for (born,) in found]


def state(place: Place) -> dict[str, Any]:
    args = ["--project", str(place.folder), "watermark", "get", "-p", "shop", "-t", "orders", "--json"]
    done = CliRunner().invoke(tidegate, args)
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    mark: dict[str, Any] = found[0] if isinstance(found, list) else found
    return mark


def test_by_default_a_zero_date_stops_its_table_alone_and_says_what_to_decide(build: Build) -> None:
    place = begun(build, "mariadb-duckdb", 3, 2)
    place.shop.run("CREATE TABLE colours (id INT PRIMARY KEY)")
    place.configure({"orders": HYBRID, "colours": FULL_SYNC})

    tables = place.sync().tables

    error = tables["orders"].error
    assert isinstance(error, LossyValue)
    assert "column `born` holds 0000-00-00 where" in error.message
    assert "on_lossy: {born: null}" in str(error.hint)
    assert place.mark().extracted.position is None
    assert tables["colours"].status is TableStatus.SUCCESS


def test_values_that_become_null_are_counted_everywhere(build: Build) -> None:
    place = begun(build, "mariadb-postgres", 5, 2, 4)
    place.configure({"orders": {**HYBRID, "on_lossy": "null"}})

    result = place.synced()

    assert births(place) == ["2000-02-29", None, "2000-02-29", None, "2000-02-29"]
    assert result.to_json()["lossy"] == {"born": 2}
    assert state(place)["extracted"]["lossy"] == {"born": 2}
    assert "column born: 2 values did not fit and became NULL" in place.notes.texts
    later = LONG_AGO + timedelta(days=1)
    place.shop.execute(ZERO.format(1) + f";UPDATE orders SET updated_at = '{later}' WHERE id IN (1, 2, 3)")
    assert place.synced().lossy == (("born", 2),)
    assert state(place)["extracted"]["lossy"] == {"born": 4}


def test_a_run_that_is_interrupted_and_resumed_counts_nothing_twice(build: Build) -> None:
    place = begun(build, "mariadb-duckdb", 6, 1, 2, 3, 6)
    decided = {**HYBRID, "columns": {"on_lossy": {"born": "null"}}}
    place.configure({"orders": decided}, processing=SMALL)
    full = FullStaging(place.folder / "staging", 1)
    place.parts = lambda: replace(Place.parts(place), staging=full)  # type: ignore[method-assign]
    [first] = place.sync().tables.values()
    del place.parts

    second = place.synced()

    assert (first.lossy, second.lossy) == ((("born", 2),), (("born", 2),))
    assert place.mark().extracted.lossy == (("born", 4),)
    assert births(place) == [None, None, None, "2000-02-29", "2000-02-29", None]


@pytest.mark.parametrize("route", ["mariadb-duckdb", "mariadb-postgres"])
def test_a_column_that_becomes_text_takes_along_what_was_staged_and_loaded_before(
    build: Build, route: str
) -> None:
    place = begun(build, route, 1)
    place.configure({"orders": HYBRID})
    place.synced()
    place.shop.insert(1, first=2, at=LONG_AGO + timedelta(days=1))
    place.synced(scope=Scope.EXTRACT)
    place.shop.insert(1, first=3, at=LONG_AGO + timedelta(days=2))
    place.shop.execute(ZERO.format(3))
    place.configure({"orders": {**HYBRID, "columns": {"on_lossy": {"born": "text"}}}})

    result = place.synced()

    assert result.schema_changes == ("column born (date) travels as text now, and was date",)
    assert births(place) == ["2000-02-29", "2000-02-29", "0000-00-00"]
    assert result.lossy == ()


def test_what_only_the_target_cannot_hold_stops_before_it_is_staged(build: Build) -> None:
    place = build("mariadb-postgres")
    place.shop.run("CREATE TABLE odd (id INT PRIMARY KEY, word VARCHAR(9))")
    place.shop.run("INSERT INTO odd VALUES (7, CONCAT('a', CHAR(0)))")
    place.configure({"odd": FULL_SYNC})

    [table] = place.sync().tables.values()

    assert isinstance(table.error, LossyValue)
    assert "column `word` holds 'a\\x00' where id = 7" in str(table.error)
    place.configure({"odd": {**FULL_SYNC, "on_lossy": "null"}})
    assert place.synced().lossy == (("word", 1),)
    assert place.warehouse.execute("SELECT id, word FROM odd") == [(7, None)]

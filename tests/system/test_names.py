"""Columns whose names a target does not take as they are, on real servers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.system.conftest import Build, Place
from tests.system.shop import ID_ONLY, quoted
from tidegate.cli.root import tidegate
from tidegate.core.names import RULES
from tidegate.sync.pipeline import Scope

LONG = "the number of times that somebody has looked at this very long name, " + "é" * 40


def columns(place: Place, *args: str) -> Result:
    return CliRunner().invoke(tidegate, ["--project", str(place.folder), "columns", *args])


def shown(place: Place) -> dict[str, Any]:
    found = columns(place, "show", "-t", "odd", "--json")
    assert found.exit_code == 0, found.output
    [table] = json.loads(found.stdout)
    return {column["column"]: column for column in table["columns"]}


def odd(place: Place, *names: str) -> None:
    place.shop.run(
        f"CREATE TABLE odd (id INTEGER PRIMARY KEY, {', '.join(f'{quoted(n)} TEXT' for n in names)})"
    )
    place.configure({"odd": ID_ONLY})


def add(place: Place, **values: object) -> None:
    names = ", ".join(map(quoted, values))
    place.shop.run(
        f"INSERT INTO odd ({names}) VALUES ({', '.join(repr(value) for value in values.values())})"
    )


@pytest.fixture
def place(build: Build, request: pytest.FixtureRequest) -> Place:
    return build(getattr(request, "param", "sqlite-duckdb"))


@pytest.mark.parametrize("place", ["sqlite-postgres"], indirect=True)
def test_long_names_and_system_columns_reach_postgresql(place: Place) -> None:
    table = "t" * 70
    place.shop.run(
        f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, {quoted(LONG)} TEXT, xmin TEXT, _tidegate_run TEXT)"
    )
    place.shop.run(f"INSERT INTO {table} VALUES (1, 'a', 'b', 'c')")
    place.configure({table: ID_ONLY})
    place.synced()
    rules = RULES["postgresql"]
    named = ", ".join(quoted(rules.safe_column(name)) for name in ("id", LONG, "xmin", "_tidegate_run"))
    found = place.warehouse.execute(f"SELECT {named} FROM {quoted(rules.safe_table(table))}")
    assert found == [(1, "a", "b", "c")]
    assert dict(place.mark(table).names)["xmin"] == "xmin_"


@pytest.mark.parametrize("place", ["postgres-duckdb"], indirect=True)
def test_a_column_that_differs_by_case_alone_comes_later_and_disturbs_nothing(place: Place) -> None:
    odd(place, "Name")
    add(place, id=1, Name="first")
    place.synced()
    place.shop.run("ALTER TABLE odd ADD COLUMN name TEXT")
    add(place, id=2, Name="second", name="other")
    place.synced()
    [other] = [name for column, name in place.mark("odd").names if column == "name"]
    assert place.warehouse.execute(f'SELECT id, "Name", {quoted(other)} FROM odd ORDER BY id') == [
        (1, "first", None),
        (2, "second", "other"),
    ]


@pytest.mark.parametrize("place", ["postgres-duckdb"], indirect=True)
def test_a_column_whose_name_changes_its_case_alone_is_the_same_column(place: Place) -> None:
    odd(place, "Name")
    add(place, id=1, Name="first")
    place.synced(scope=Scope.EXTRACT)
    place.shop.run('ALTER TABLE odd RENAME COLUMN "Name" TO name')
    for number, name in ((2, "second"), (3, "third")):
        add(place, id=number, name=name)
        place.synced()
    found = place.warehouse.execute("SELECT id, name FROM odd ORDER BY id")
    assert found == [(1, "first"), (2, "second"), (3, "third")]


def test_a_mapping_is_used_by_every_later_run(place: Place) -> None:
    odd(place, "cust nr")
    saved = columns(place, "map", "-t", "odd", "cust nr", "customer")
    assert saved.exit_code == 0, saved.output
    assert "column_mappings/shop.odd.json" in saved.output
    for number in (1, 2):
        add(place, id=number, **{"cust nr": f"c{number}"})
        place.synced()
    assert place.warehouse.execute("SELECT id, customer FROM odd ORDER BY id") == [(1, "c1"), (2, "c2")]
    assert shown(place)["cust nr"] == {
        "column": "cust nr",
        "type": "text",
        "name": "customer",
        "target_type": "VARCHAR",
        "origin": "mapped",
        "there": True,
        "needs_quotes": False,
    }
    (place.folder / "column_mappings" / "shop.odd.json").unlink()  # the state remembers
    add(place, id=3, **{"cust nr": "c3"})
    place.synced()
    assert place.warehouse.execute("SELECT customer FROM odd WHERE id = 3") == [("c3",)]


def test_a_mapping_that_would_leave_rows_behind_is_refused(place: Place) -> None:
    odd(place, "cust")
    add(place, id=1, cust="a")
    place.synced()
    refused = columns(place, "map", "-t", "odd", "cust", "customer")
    assert refused.exit_code == 2
    assert "its rows so far are in `cust`" in refused.output
    assert "RENAME COLUMN cust TO customer" in refused.output
    place.warehouse.execute("ALTER TABLE odd RENAME COLUMN cust TO customer")
    assert columns(place, "map", "-t", "odd", "cust", "customer").exit_code == 0
    add(place, id=2, cust="b")
    place.synced()
    assert place.warehouse.execute("SELECT id, customer FROM odd ORDER BY id") == [(1, "a"), (2, "b")]
    back = columns(place, "unmap", "-t", "odd", "cust")
    assert back.exit_code == 2
    assert "its rows so far are in `customer`" in back.output
    place.shop.run("ALTER TABLE odd ADD COLUMN other TEXT")
    taken = columns(place, "map", "-t", "odd", "other", "customer")
    assert taken.exit_code == 2
    assert "would both be called customer" in taken.output
    taken = columns(place, "map", "-t", "odd", "other", "id")
    assert taken.exit_code == 2
    assert "that is where the rows so far have column `id`" in taken.output


def test_a_mapping_written_by_hand_is_held_to_the_same(place: Place) -> None:
    odd(place, "cust")
    add(place, id=1, cust="a")
    place.synced()
    mapping = {"pipeline": "shop", "table": "odd", "columns": {"cust": "customer"}}
    (place.folder / "column_mappings").mkdir()
    (place.folder / "column_mappings" / "shop.odd.json").write_text(json.dumps(mapping))
    add(place, id=2, cust="b")
    [result] = place.sync().tables.values()
    assert result.error is not None
    assert "its rows so far are in `cust`" in str(result.error)
    (place.folder / "column_mappings" / "shop.odd.json").write_text("{")
    assert "it is not JSON" in columns(place, "show", "-t", "odd").output
    (place.folder / "column_mappings" / "shop.odd.json").unlink()
    place.synced()
    assert place.warehouse.execute("SELECT cust FROM odd ORDER BY id") == [("a",), ("b",)]


def test_a_column_renamed_at_the_source_goes_on_under_its_old_name_if_mapped(place: Place) -> None:
    odd(place, "cust")
    add(place, id=1, cust="a")
    place.synced()
    place.shop.run("ALTER TABLE odd RENAME COLUMN cust TO customer")
    assert columns(place, "map", "-t", "odd", "customer", "cust").exit_code == 0
    add(place, id=2, customer="b")
    place.synced()
    assert place.warehouse.execute("SELECT id, cust FROM odd ORDER BY id") == [(1, "a"), (2, "b")]
    assert "customer" not in {
        name for (name,) in place.warehouse.execute("SELECT column_name FROM duckdb_columns()")
    }


@pytest.mark.parametrize("place", ["sqlite-duckdb", "sqlite-postgres"], indirect=True)
def test_what_was_read_before_a_column_was_renamed_goes_where_it_is_mapped_to(place: Place) -> None:
    odd(place, "cust", "Note")
    add(place, id=1, cust="a", Note="x")
    place.synced(scope=Scope.EXTRACT)
    place.shop.run("ALTER TABLE odd RENAME COLUMN cust TO customer")
    assert columns(place, "map", "-t", "odd", "customer", "cust").exit_code == 0
    add(place, id=2, customer="b", Note="y")
    changes = place.synced().schema_changes
    assert changes == ("column cust is called customer now, and goes on where it was",)
    arrived = [(1, "a", "x"), (2, "b", "y")]
    told = f"SELECT id, cust, {quoted('Note')} FROM odd ORDER BY id"
    assert place.warehouse.execute(told) == arrived
    again = ["--project", str(place.folder), "watermark", "reset", "-t", "odd", "--loaded-only", "--yes"]
    assert CliRunner().invoke(tidegate, [*again, "--reason", "once more"]).exit_code == 0
    place.synced(scope=Scope.LOAD)
    assert place.warehouse.execute(told) == arrived
    assert set(place.parts().target().columns("odd")) == {"id", "cust", "Note", "_tidegate_run"}


def test_rows_that_wait_are_loaded_as_what_was_read_though_the_key_is_another_now(place: Place) -> None:
    place.shop.run("CREATE TABLE odd (id INTEGER PRIMARY KEY, seq INTEGER NOT NULL)")
    place.configure({"odd": {"cdc_strategy": "id_only", "cdc_id_column": "seq"}})
    add(place, id=1, seq=5)
    place.synced(scope=Scope.EXTRACT)
    place.shop.run("ALTER TABLE odd RENAME COLUMN id TO number")

    place.synced()

    assert place.warehouse.execute("SELECT id, seq FROM odd") == [(1, 5)]


def test_a_mapping_that_cannot_be_is_refused(place: Place) -> None:
    odd(place, "a", "b")
    for column, name, problem in (
        ("c", "x", "there is no column `c`"),
        ("a", "_tidegate_run", "has for itself"),
        ("a", "ID", "would both be called"),
    ):
        if name == "ID":
            assert columns(place, "map", "-t", "odd", "id", "ID").exit_code == 0
        refused = columns(place, "map", "-t", "odd", column, name)
        assert refused.exit_code == 2
        assert problem in refused.output
    assert "is not mapped" in columns(place, "unmap", "-t", "odd", "b").output
    assert columns(place, "unmap", "-t", "odd", "id").exit_code == 0
    assert not (place.folder / "column_mappings" / "shop.odd.json").exists()

"""A complete run leaves its marker in staging."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from tests.system.conftest import Build, Place
from tests.system.shop import FULL_SYNC, HYBRID, LONG_AGO
from tidegate.core.errors import StagingError
from tidegate.staging.layout import is_marker
from tidegate.staging.local import LocalStaging
from tidegate.sync.pipeline import Scope


@pytest.fixture
def shop(build: Build) -> Place:
    place = build("sqlite-duckdb")
    place.shop.create()
    place.shop.insert(100)
    place.configure(processing={"batch_size": 40})
    return place


def _markers(place: Place) -> list[dict[str, Any]]:
    """Of the runs in their order: the keys of those that began in one second are in none."""
    staging = place.parts().staging
    keys = [item.key for item in staging.list() if is_marker(item.key)]
    markers: list[dict[str, Any]] = [json.loads(data) for data in staging.get_all(keys)]
    return sorted(markers, key=lambda marker: str(marker["started_at"]))


def _receipts(place: Place) -> list[str]:
    return [item.key for item in place.parts().staging.list("_receipts")]


def test_a_marker_says_what_the_run_has_done_and_names_its_files(shop: Place) -> None:
    shop.synced()

    [marker] = _markers(shop)
    run = shop.mark().run
    assert run is not None
    assert (marker["execution_id"], marker["status"], marker["pipeline"]) == (run.id, "success", "shop")
    table = marker["table_results"]["orders"]
    assert (table["rows_extracted"], table["rows_loaded"], table["files_created"]) == (100, 100, 3)
    there = shop.parts().staging.stat_all([file["key"] for file in marker["files"]])
    assert [there[file["key"]].bytes for file in marker["files"]] == [f["bytes"] for f in marker["files"]]
    assert sum(file["rows"] for file in marker["files"]) == 100
    assert _receipts(shop) == []


def test_every_run_has_its_marker_and_a_sync_without_news_has_none(shop: Place) -> None:
    shop.synced(scope=Scope.EXTRACT)
    shop.synced()
    shop.shop.insert(5, first=1_000, at=LONG_AGO + timedelta(days=1))
    shop.synced()

    rows = [marker["table_results"]["orders"] for marker in _markers(shop)]
    assert [(row["rows_extracted"], row["rows_loaded"]) for row in rows] == [(100, 0), (5, 5)]


@dataclass(frozen=True)
class Unmarkable(LocalStaging):
    """Fails at markers, as if the run had died in front of them."""

    @contextmanager
    def create(self, key: str) -> Iterator[Any]:
        if is_marker(key):
            raise StagingError("no marker today", where=key)
        with super().create(key) as writer:
            yield writer


@pytest.mark.parametrize("strategy", [HYBRID, FULL_SYNC], ids=["incremental", "snapshot"])
@pytest.mark.parametrize("then", [Scope.BOTH, Scope.LOAD])
def test_a_run_that_died_before_its_marker_gets_it_from_the_next_sync(
    shop: Place, strategy: dict[str, str], then: Scope
) -> None:
    shop.configure({"orders": strategy}, processing={"batch_size": 40})
    unmarkable = Unmarkable(shop.folder / "staging")
    shop.parts = lambda: replace(Place.parts(shop), staging=unmarkable)  # type: ignore[method-assign]
    assert shop.sync(scope=Scope.EXTRACT).exit_code == 1
    del shop.parts
    died = shop.mark().run
    assert died is not None
    assert _markers(shop) == []

    shop.synced(scope=then)

    first = next(marker for marker in _markers(shop) if marker["execution_id"] == died.id)
    assert first["table_results"]["orders"]["rows_loaded"] == 100
    assert sum(file["rows"] for file in first["files"]) == 100
    assert _receipts(shop) == []
    shop.agree()

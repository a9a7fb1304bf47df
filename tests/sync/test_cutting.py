"""A window is cut by row count: a part of it before anything is read, the rest while that is read."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tidegate.config.project import Project
from tidegate.core.errors import SourceError
from tidegate.core.positions import Position
from tidegate.core.watermark import Round, Run, RunKind, RunState, StreamId
from tidegate.core.windows import Window, tiles
from tidegate.sync import cutting
from tidegate.sync.cutting import Cutter, cut_round
from tidegate.sync.job import TableJob, describe
from tidegate.sync.library import open_parts

CONNECTIONS = """
connections:
  sources: {shop: {type: sqlite, path: shop.db}}
  targets: {warehouse: {type: duckdb, path: warehouse.duckdb}}
staging: {files: {type: local, path: ./staging}}
state: {default: {type: local, path: ./state}}
"""
PIPELINE = """
pipeline: {name: shop, source: shop, target: warehouse, staging: files, state: default}
tables: {orders: {cdc_strategy: id_only, cdc_id_column: id, processing: {batch_size: 10}}}
"""
EVERYTHING = Window(None, Position.of(95))


@dataclass
class Shop:
    """A table of 95 rows, in chunks of ten."""

    source: Any
    job: TableJob

    def cutter(self, window: Window = EVERYTHING) -> Cutter:
        return Cutter(self.source, self.job, window)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    (tmp_path / "config/pipelines").mkdir(parents=True)
    (tmp_path / "config/connections.yml").write_text(CONNECTIONS)
    (tmp_path / "config/pipelines/shop.yml").write_text(PIPELINE)
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT)")
        database.executemany("INSERT INTO orders VALUES (?, 'x')", [(number,) for number in range(1, 96)])
    pipeline = Project.load(tmp_path).pipeline("shop")
    parts = open_parts(pipeline, command="test")
    try:
        source = parts.source()
        job = describe(source, pipeline.settings_for("orders"), StreamId("shop", "orders"))
        yield Shop(source, job)
    finally:
        parts.close()


def ends(cut: Round) -> list[int]:
    return [int(chunk.window.high.values[0]) for chunk in cut.chunks if chunk.window.high]  # type: ignore[arg-type]


def test_a_round_holds_no_more_than_was_asked_for_if_nothing_was_cut_ahead(shop: Shop) -> None:
    cutter = shop.cutter()
    rounds = [cutter.round(4), cutter.round(4), cutter.round(4)]
    assert [ends(cut) for cut in rounds] == [[10, 20, 30, 40], [50, 60, 70, 80], [90, 95]]
    assert tiles(EVERYTHING, [cut.window for cut in rounds])


def test_what_was_cut_ahead_is_the_next_round(shop: Shop) -> None:
    cutter = shop.cutter()
    first = cutter.round(2)
    while cutter.ahead():
        pass
    second = cutter.round(2)
    assert (ends(first), ends(second)) == ([10, 20], [30, 40, 50, 60, 70, 80, 90, 95])
    assert tiles(EVERYTHING, [first.window, second.window])


def test_no_round_is_longer_than_the_state_is_to_remember(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutting, "CHUNKS_PER_ROUND", 3)
    cutter = shop.cutter()
    while cutter.ahead():
        pass
    assert ends(cutter.round(2)) == [10, 20, 30]
    assert ends(cut_round(shop.source, shop.job, EVERYTHING)) == [10, 20, 30]


def test_a_cut_ahead_that_fails_is_told_of_when_it_is_needed(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    cutter = shop.cutter()
    cutter.round(2)

    def gone(*_: object) -> None:
        raise SourceError("gone")

    monkeypatch.setattr(shop.source, "nth", gone)
    assert cutter.ahead()
    assert not cutter.ahead()
    with pytest.raises(SourceError, match="gone"):
        cutter.round(2)


def _run(progress: int | None, under_way: Round | None) -> Run:
    run = Run(
        "r", 1, RunKind.INCREMENTAL, RunState.RUNNING, EVERYTHING, None, datetime(2025, 6, 1, tzinfo=UTC)
    )
    return replace(run, progress=Position.of(progress) if progress else None, round=under_way)


def test_a_run_that_goes_on_amid_a_round_is_cut_after_that_round(shop: Shop) -> None:
    under_way = Round(Window(None, Position.of(33)), (Position.of(11),), done=1)
    cutter = Cutter.of(shop.source, shop.job, _run(11, under_way))
    assert ends(cutter.round(3)) == [43, 53, 63]


def test_a_run_between_two_rounds_is_cut_from_where_it_is(shop: Shop) -> None:
    finished = Round(Window(None, Position.of(33)), (Position.of(11),), done=2)
    cutter = Cutter.of(shop.source, shop.job, _run(33, finished))
    assert cutter.round(1).window == Window(Position.of(33), Position.of(43))


@pytest.mark.parametrize("end", [EVERYTHING.high, None])
def test_nothing_is_cut_ahead_of_the_last_round(shop: Shop, end: Position | None) -> None:
    run = replace(_run(None, Round(Window(None, end), ())), window=Window(None, end))
    assert not Cutter.of(shop.source, shop.job, run).ahead()

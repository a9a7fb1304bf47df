"""A project on disk, commands run in it, and states made without any source."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tidegate.cli.root import tidegate
from tidegate.config.scaffold import write_project
from tidegate.core import transitions
from tidegate.core.lossy import Tally
from tidegate.core.positions import Position
from tidegate.core.receipts import Receipt, Segment
from tidegate.core.watermark import RunKind, StreamId, Watermark
from tidegate.core.windows import Window
from tidegate.staging.local import LocalStaging
from tidegate.state.hold import HeldStream, hold
from tidegate.state.local import LocalStore
from tidegate.state.process import this_process

Run = Callable[..., Result]

NOON = datetime(2025, 8, 1, 12)  # noqa: DTZ001 - the shop's clock has no zone
SCHEMA = ("f1", {"columns": [["id", ["int64", None, None, None], False, "INTEGER"]], "key": ["id"]})


@dataclass
class Shop:
    """The project that `tidegate init` writes, with its store and staging at hand."""

    root: Path
    now: datetime = datetime(2025, 8, 2, tzinfo=UTC)
    _numbers: count[int] = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        self.store = LocalStore(self.root / "state")
        self.staging = LocalStaging(self.root / "staging")

    def execute(self, sql: str) -> None:
        with closing(sqlite3.connect(self.root / "shop.db")) as connection, connection:
            connection.executescript(sql)

    def pipeline(self, text: str) -> None:
        (self.root / "config/pipelines/shop.yml").write_text(text, encoding="utf-8")

    def clock(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now

    def mark(self, table: str = "orders") -> Watermark:
        mark = self.store.read(StreamId("shop", table)).watermark
        assert mark is not None
        return mark

    def hold(self, table: str = "orders"):  # type: ignore[no-untyped-def]
        return hold(
            self.store,
            StreamId("shop", table),
            holder=this_process("a test"),
            clock=lambda: datetime.now(UTC),
            nonce=f"n{next(self._numbers)}",
        )

    def plan(self, held: HeldStream, low: Position | None, high: Position) -> str:
        run_id = f"r{next(self._numbers)}"
        mark = held.watermark or transitions.new(held.stream, ("updated_at", "id"), self.clock())
        held.commit(
            *transitions.plan(
                mark,
                run_id=run_id,
                kind=RunKind.INCREMENTAL,
                window=Window(low, high),
                now=self.clock(),
                cursor=("updated_at", "id"),
                schema=SCHEMA,
                tables="parallel",
            )
        )
        held.commit(transitions.begin_round(_mark(held), Window(low, high), (), self.clock()))
        return run_id

    def stage(
        self, run_id: str, window: Window, rows: int, table: str = "orders", lossy: Tally = ()
    ) -> Receipt:
        key = f"year=2025/{table}_20250801_batch_0001_{run_id}_a1.parquet"
        written = self.staging.put(key, b"x" * 100)
        segment = Segment(
            key=key,
            rows=rows,
            bytes=written.bytes,
            etag=written.etag,
            checksum=written.etag,
            run=1,
            chunk=1,
            window=window,
            schema=SCHEMA[0],
        )
        return Receipt(run_id, 1, "a1", window, rows, window.high, window.high, segment, lossy=lossy)

    def extract(self, hours: int, *, rows: int = 10, table: str = "orders", lossy: Tally = ()) -> str:
        """A finished run whose segment is pending; the mark ends up so many hours after noon."""
        high = Position.of(NOON + timedelta(hours=hours), 100 + hours)
        with self.hold(table) as held:
            low = held.watermark.extracted.position if held.watermark else None
            run_id = self.plan(held, low, high)
            receipt = self.stage(run_id, Window(low, high), rows, table, lossy)
            held.commit(transitions.advance(_mark(held), [receipt], self.clock()))
            held.commit(*transitions.finish(_mark(held), self.clock()))
        return run_id

    def load(self, table: str = "orders") -> None:
        with self.hold(table) as held:
            keys = {segment.key for segment in _mark(held).pending}
            held.commit(*transitions.loaded(_mark(held), keys, self.clock()))


def _mark(held: HeldStream) -> Watermark:
    assert held.watermark is not None
    return held.watermark


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    write_project(tmp_path)
    return Shop(tmp_path)


@pytest.fixture
def run(shop: Shop) -> Run:
    """Run `tidegate` in the shop's project, in this process."""

    def invoke(*args: str, input: str | None = None) -> Result:
        return CliRunner().invoke(tidegate, ["--project", str(shop.root), *args], input=input)

    return invoke

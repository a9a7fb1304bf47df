"""Delta tables that the tests write themselves, and pipelines that follow them."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tidegate.config.project import Project
from tidegate.delta.library import DeltaPlans

NOW = datetime(2030, 1, 1, tzinfo=UTC)
FEED = {"delta.enableChangeDataFeed": "true"}

CONNECTIONS = """
connections:
  targets:
    lake: {type: delta, path: ./gold}
state:
  lake: {type: delta, path: ./state}
"""
PIPELINE = """
pipeline: {name: gold, kind: delta, state: lake, target: lake}
upstreams:
  silver.orders: {path: ./silver/orders, keys: [id]}
"""


@dataclass
class Lake:
    """A project whose upstreams lie in `silver`. Its clock moves by a second whenever it is asked."""

    root: Path
    now: datetime = NOW
    tokens: list[int] = field(default_factory=lambda: [0])

    def configure(self, pipeline: str = PIPELINE, connections: str = CONNECTIONS) -> Lake:
        for name, text in (("connections.yml", connections), ("pipelines/gold.yml", pipeline)):
            path = self.root / "config" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text), encoding="utf-8")
        return self

    def place(self, name: str = "orders") -> Path:
        return self.root / "silver" / name

    def append(
        self, rows: Iterable[dict[str, Any]], name: str = "orders", *, feed: bool = True, **options: Any
    ) -> int:
        """Append rows, and say which version that made."""
        new = not self.place(name).exists()
        write_deltalake(
            self.place(name),
            pa.Table.from_pylist(list(rows)),
            mode=options.pop("mode", "append"),
            configuration=FEED if new and feed else None,
            **options,
        )
        return self.table(name).version()

    def table(self, name: str = "orders") -> DeltaTable:
        return DeltaTable(self.place(name))

    def plans(self, **options: Any) -> DeltaPlans:
        return DeltaPlans(
            "gold", project=Project.load(self.root, {}), clock=self.clock, token=self.token, **options
        )

    def clock(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now

    def token(self) -> str:
        self.tokens[0] += 1
        return f"{self.tokens[0]:04}"

    def rewrite_moments(self, name: str, moments: dict[int, datetime]) -> None:
        """Say of commits that they were made at other times."""
        for version, moment in moments.items():
            path = self.place(name) / "_delta_log" / f"{version:020}.json"
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            for line in lines:
                if "commitInfo" in line:
                    line["commitInfo"]["timestamp"] = int(moment.timestamp() * 1000)
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A project with one upstream, `silver.orders`, that nobody has written to yet."""
    return Lake(tmp_path).configure()


def order(number: int, state: str = "new") -> dict[str, Any]:
    return {"id": number, "state": state}

"""Tidegate: `tidegate sync --extract-only` as a command, and its library in a process that stays up."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from bench.contract import COLD, FIRST, SECOND, Copy
from bench.meter import WHOLE, Measured
from bench.running import ROOT, metered
from bench.tables import CURSOR, KEY, Table
from tests.servers import Server

PROGRAM = Path(sys.executable).parent / "tidegate"
SESSION = ROOT / "bench" / "children" / "tidegate_session.py"
CURSORS = {
    "id_only": {"cdc_id_column": KEY},
    "hybrid": {"cdc_timestamp_column": CURSOR, "cdc_id_column": KEY},
    "full_sync": {},
}


@dataclass(frozen=True)
class Tidegate:
    strategy: str = "id_only"
    """The other tools copy by key or in no order at all: this is the nearest to that."""
    name: str = "tidegate"
    workers: str | None = None
    """A module that Spark's workers come from, in the place of Tidegate's own."""

    def prepare(self) -> None:
        """It is the project's own."""

    def cold(self, server: Server, table: Table, folder: Path) -> list[Copy]:
        phases = self._run([str(PROGRAM), "sync", "--extract-only", "--project"], server, table, folder)
        return [Copy(COLD, phases[WHOLE], folder / "first")]

    def warm(self, server: Server, table: Table, folder: Path) -> list[Copy]:
        phases = self._run([sys.executable, str(SESSION)], server, table, folder)
        return [
            Copy(FIRST, phases["first"], folder / "first"),
            Copy(SECOND, phases["second"], folder / "second"),
        ]

    def _run(self, command: list[str], server: Server, table: Table, folder: Path) -> dict[str, Measured]:
        runs = ["first", "second"] if str(SESSION) in command else ["first"]
        for run in runs:
            write_pipeline(
                folder, run, {table.name: {"cdc_strategy": self.strategy, **CURSORS[self.strategy]}}
            )
        conf = {"spark.python.daemon.module": self.workers} if self.workers else {}
        write_connections(folder, server, runs, conf)
        return metered([*command, str(folder)], server, folder, {"PYTHONPATH": str(ROOT)} if conf else {})


@dataclass(frozen=True)
class Trusting(Tidegate):
    """Tidegate, reading PostgreSQL as is quickest, which makes 0 of NaN. MariaDB it reads so anyway."""

    name: str = "trusting"
    workers: str | None = "bench.children.trusting_workers"

    def cold(self, *_: object) -> list[Copy]:
        return []

    def warm(self, server: Server, table: Table, folder: Path) -> list[Copy]:
        return super().warm(server, table, folder) if server.kind == "postgresql" else []


def write_connections(
    folder: Path, server: Server, areas: list[str], conf: Mapping[str, str] | None = None
) -> None:
    """A project that reads from the server and keeps all else in its own folder."""
    connections = {
        "connections": {
            "sources": {"shop": server.config},
            "targets": {"warehouse": {"type": "duckdb", "path": "warehouse.duckdb"}},
        },
        "staging": {name: {"type": "local", "path": f"./{name}"} for name in areas},
        "state": {"default": {"type": "local", "path": "./state"}},
        "spark": {"conf": dict(conf or {})},
    }
    _write(folder / "config" / "connections.yml", connections)


def write_pipeline(folder: Path, name: str, tables: dict[str, dict[str, str]]) -> None:
    """A pipeline with a staging area of its own name."""
    pipeline = {"name": name, "source": "shop", "target": "warehouse", "staging": name, "state": "default"}
    _write(folder / "config" / "pipelines" / f"{name}.yml", {"pipeline": pipeline, "tables": tables})


def _write(path: Path, data: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(data, sort_keys=False))

"""A sync that finds nothing new, as a cold command: what a schedule pays all day long."""

from __future__ import annotations

import json
from pathlib import Path

from bench.contract import ToolFailed
from bench.meter import WHOLE, Measured
from bench.results import Idle
from bench.running import metered
from bench.tables import CURSOR, KEY, create_many
from bench.tools.tidegate import PROGRAM, write_connections, write_pipeline
from tests.servers import Server

ROWS = 1_000
REPEATS = 5


def idle(server: Server, label: str, tables: int, folder: Path) -> Idle:
    """Sync the tables once, then time syncs that have nothing to do."""
    names = [f"orders_{number:02}" for number in range(1, tables + 1)]
    create_many(server, names, ROWS)
    settings = {"cdc_strategy": "hybrid", "cdc_timestamp_column": CURSOR, "cdc_id_column": KEY}
    write_pipeline(folder, "files", dict.fromkeys(names, settings))
    write_connections(folder, server, ["files"])
    _sync(server, folder, expected="success")
    return Idle(label, tables, [_sync(server, folder, expected="nothing_new") for _ in range(REPEATS)])


def _sync(server: Server, folder: Path, *, expected: str) -> Measured:
    answer = folder / "answer.json"
    command = [str(PROGRAM), "sync", "--project", str(folder), "--json-output", str(answer)]
    cost = metered(command, server, folder)[WHOLE]
    status = json.loads(answer.read_text())["status"]
    if status != expected:
        raise ToolFailed(f"the sync ended with `{status}`, not `{expected}`")
    return cost

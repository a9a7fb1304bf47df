"""ingestr: one binary, one command for each table, one Parquet file."""

from __future__ import annotations

from pathlib import Path

from bench.contract import COLD, Copy
from bench.environments import environment
from bench.meter import WHOLE
from bench.running import metered
from bench.tables import Table
from tests.servers import Server

PACKAGES = ("ingestr==1.1.22",)


class Ingestr:
    name = "ingestr"

    def prepare(self) -> None:
        environment(self.name, *PACKAGES)

    def cold(self, server: Server, table: Table, folder: Path) -> list[Copy]:
        schema = "public" if server.kind == "postgresql" else server.database
        program = environment(self.name, *PACKAGES) / "ingestr"
        command = [
            *(str(program), "ingest", "--yes", "--progress", "log"),
            *("--source-uri", server.url, "--source-table", f"{schema}.{table.name}"),
            *("--dest-uri", f"parquet://{folder / 'orders.parquet'}", "--dest-table", "bench.orders"),
        ]
        phases = metered(command, server, folder, {"INGESTR_DISABLE_TELEMETRY": "true"})
        return [Copy(COLD, phases[WHOLE], folder)]

    def warm(self, server: Server, table: Table, folder: Path) -> list[Copy]:  # noqa: ARG002
        return []

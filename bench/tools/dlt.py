"""dlt with its connectorx backend, streaming, into its filesystem destination."""

from __future__ import annotations

from pathlib import Path

from bench.contract import COLD, FIRST, SECOND, Copy
from bench.environments import environment
from bench.meter import WHOLE, Measured
from bench.running import ROOT, metered
from bench.tables import Table
from tests.servers import Server

PACKAGES = (
    "dlt[sql-database,filesystem,parquet]==1.31.0",
    "connectorx==0.4.6",
    "psycopg2-binary",
    "pymysql",
)
JOB = ROOT / "bench" / "children" / "dlt_job.py"
DRIVERS = {"mysql": "mysql+pymysql", "postgresql": "postgresql+psycopg2"}


class Dlt:
    name = "dlt"

    def prepare(self) -> None:
        environment(self.name, *PACKAGES)

    def cold(self, server: Server, table: Table, folder: Path) -> list[Copy]:
        return [Copy(COLD, self._run(server, table, folder, ["only"])[WHOLE], folder / "only" / "out")]

    def warm(self, server: Server, table: Table, folder: Path) -> list[Copy]:
        phases = self._run(server, table, folder, ["first", "second"])
        return [
            Copy(FIRST, phases["first"], folder / "first" / "out"),
            Copy(SECOND, phases["second"], folder / "second" / "out"),
        ]

    def _run(self, server: Server, table: Table, folder: Path, runs: list[str]) -> dict[str, Measured]:
        python = environment(self.name, *PACKAGES) / "python"
        url = server.url.replace(server.kind, DRIVERS[server.kind], 1)
        command = [str(python), str(JOB), url, table.name, *(str(folder / run) for run in runs)]
        return metered(command, server, folder)

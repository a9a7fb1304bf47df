"""Plain Spark: its JDBC reader with eight partitions, its own Parquet writer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bench.contract import COLD, FIRST, SECOND, Copy
from bench.environments import cache
from bench.meter import WHOLE, Measured
from bench.running import ROOT, metered
from bench.tables import KEY, Table
from tests.servers import Server

DRIVERS = ("org.mariadb.jdbc:mariadb-java-client:3.5.10", "org.postgresql:postgresql:42.7.14")
PARTITIONS = 8
JOB = ROOT / "bench" / "children" / "spark_jdbc_job.py"


class SparkJdbc:
    name = "spark-jdbc"

    def prepare(self) -> None:
        self._jars()

    def cold(self, server: Server, table: Table, folder: Path) -> list[Copy]:
        phases = self._run(server, table, folder, ["only"], "cold")
        return [Copy(COLD, phases[WHOLE], folder / "only")]

    def warm(self, server: Server, table: Table, folder: Path) -> list[Copy]:
        phases = self._run(server, table, folder, ["first", "second"], "warm")
        return [
            Copy(FIRST, phases["first"], folder / "first"),
            Copy(SECOND, phases["second"], folder / "second"),
        ]

    def _run(
        self, server: Server, table: Table, folder: Path, runs: list[str], start: str
    ) -> dict[str, Measured]:
        options = json.dumps(_connection(server) | _reading(table))
        command = [sys.executable, str(JOB), start, ",".join(self._jars()), options]
        return metered([*command, *(str(folder / run) for run in runs)], server, folder)

    def _jars(self) -> list[str]:
        """Fetched once, by Spark itself, so that no measured run waits for a repository."""
        ivy = cache() / "ivy"
        found = [next(iter((ivy / "jars").glob(f"*{name}*.jar")), None) for name in map(_artifact, DRIVERS)]
        if not all(found):
            _download(ivy)
            return self._jars()
        return [str(path) for path in found]


def _artifact(coordinates: str) -> str:
    return "-".join(coordinates.split(":")[1:])


def _download(ivy: Path) -> None:
    command = [sys.executable, str(JOB), "download", ",".join(DRIVERS), str(ivy)]
    subprocess.run(command, check=True, capture_output=True)


def _reading(table: Table) -> dict[str, str]:
    """As Spark's documentation advises: several connections by key, and rows fetched as they are used."""
    return {
        "dbtable": table.name,
        "partitionColumn": KEY,
        "lowerBound": "1",
        "upperBound": str(table.rows),
        "numPartitions": str(PARTITIONS),
        "fetchsize": "10000",
    }


def _connection(server: Server) -> dict[str, str]:
    where = f"{server.host}:{server.port}/{server.database}"
    login = {"user": server.user, "password": server.password}
    match server.kind:
        case "mysql":
            # Spark knows MariaDB by the URL of MySQL only; the driver has to be told that this is meant.
            return {
                "url": f"jdbc:mysql://{where}?permitMysqlScheme",
                "driver": "org.mariadb.jdbc.Driver",
                **login,
            }
        case "postgresql":
            return {"url": f"jdbc:postgresql://{where}", "driver": "org.postgresql.Driver", **login}

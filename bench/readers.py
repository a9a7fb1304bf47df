"""`python -m bench.readers`: what it costs to read every value as it is, beside the quickest other readers.

Each reads the same columns of the same table in the same chunks, one connection at a time, in one process and
in turn. Nothing is written: it is the reading alone that is compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.__main__ import SERVERS
from bench.environments import environment
from bench.meter import Measured
from bench.results import Ratio
from bench.running import ROOT, metered
from bench.tables import Table, create, give_memory, read_through
from tests.servers import Server, fresh_database

US = "tidegate"
JOB = ROOT / "bench" / "children" / "readers_job.py"
PACKAGES = ("-e", f"{ROOT}[mysql,postgresql]", "duckdb-extension-mysql-scanner==1.5.5")
CHUNK_ROWS = 50_000
GOAL = 0.10


@dataclass(frozen=True)
class Findings:
    """What each reader took, round by round."""

    server: str
    rows: int
    costs: dict[str, list[Measured]]

    @property
    def quickest_other(self) -> str:
        others = {name: costs for name, costs in self.costs.items() if name != US}
        return min(others, key=lambda name: statistics.median(cost.seconds for cost in others[name]))

    @property
    def slowdown(self) -> Ratio:
        """Our time as a part of that of the quickest other reader: rounds are compared with themselves."""
        pairs = zip(self.costs[US], self.costs[self.quickest_other], strict=True)
        return Ratio([ours.seconds / theirs.seconds for ours, theirs in pairs])


def measure(label: str, server: Server, table: Table, rounds: int, folder: Path) -> Findings:
    python = environment("readers", *PACKAGES) / "python"
    command = [str(python), str(JOB), _described(server), str(table.rows), str(CHUNK_ROWS), str(rounds)]
    costs: dict[str, list[Measured]] = {}
    for phase, cost in metered(command, server, folder).items():
        _, slash, name = phase.partition("/")
        if slash:
            costs.setdefault(name, []).append(cost)
    return Findings(label, table.rows, costs)


def _described(server: Server) -> str:
    known = {name: getattr(server, name) for name in ("kind", "host", "port", "database", "user", "password")}
    return json.dumps({**known, "config": server.config})


def report(found: Findings) -> Iterator[str]:
    yield f"\n{found.server}: {found.rows:,} rows of 12 columns → Arrow, one connection at a time"
    yield f"  {'':<32}{'rows/s':>12}{'seconds':>10}{'client CPU s':>14}{'server CPU s':>14}"
    for name, costs in sorted(found.costs.items(), key=lambda item: _median(item[1], "seconds")):
        seconds, client, server = (_median(costs, of) for of in ("seconds", "client_cpu", "server_cpu"))
        yield f"  {name:<32}{found.rows / seconds:>12,.0f}{seconds:>10.1f}{client:>14.1f}{server:>14.1f}"
    reached = found.slowdown.median <= 1 + GOAL
    yield (
        f"  {'reached' if reached else 'MISSED '}  exact within {GOAL:.0%} of the quickest other reader "
        f"({found.quickest_other}): {found.slowdown} its time"
    )


def _median(costs: list[Measured], figure: str) -> float:
    return statistics.median(asdict(cost)[figure] for cost in costs)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.readers", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the table (1,000,000)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each reads it (3)")
    parser.add_argument("--only", choices=SERVERS, help="one of the databases")
    options = parser.parse_args()
    environment("readers", *PACKAGES)
    for label in [options.only] if options.only else SERVERS:
        with (
            SERVERS[label]() as server,
            fresh_database(server) as database,
            tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder,
        ):
            give_memory(server)
            table = create(database, options.rows)
            read_through(database, table)
            found = measure(label, database, table, options.rounds, Path(folder))
        print("\n".join(report(found)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

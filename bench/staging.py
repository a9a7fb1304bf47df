"""`python -m bench.staging`: staging to S3 beside staging to a local folder, and how many requests it takes.

Both in one process whose Spark session is up, in turn, on the same table. The S3 server runs on the same
machine, so what it takes of the CPU is printed too: where it does not keep up, it is what is measured.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from bench.arrivals import demand_complete
from bench.meter import Measured
from bench.processes import cpu_seconds, tree
from bench.results import Ratio
from bench.running import metered
from bench.tables import KEY, Table, create, give_memory, read_through
from bench.tools.tidegate import SESSION
from tests import servers
from tests.servers import S3Server, Server

AREAS = ("local", "s3")
GOAL_SLOWDOWN = 0.15
SEGMENT_ROWS = 50_000
REQUESTS_PER_SEGMENT = 4
"""The segment and its receipt are written, the receipt is read, the segment looked at."""
REQUESTS_PER_RUN = 10
"""The marker, the end of the receipts, and the listings around them; beside one listing a second."""


@dataclass(frozen=True)
class Findings:
    table: Table
    costs: dict[str, list[Measured]]
    requests: Counter[str]
    s3_cpu: float
    """Of the S3 server, for all its runs."""

    @property
    def runs(self) -> int:
        return len(self.costs["s3"])

    @property
    def ratio(self) -> Ratio:
        """Time to S3 against time to the local folder, round by round; the first one warms up."""
        return self._ratio(0.0)

    @property
    def ratio_without_server(self) -> Ratio:
        """The same, as if the S3 server had cores of its own: its share of ours is taken off."""
        return self._ratio(self.s3_cpu / self.runs / (os.cpu_count() or 1))

    def _ratio(self, taken_off: float) -> Ratio:
        pairs = zip(self.costs["s3"][1:], self.costs["local"][1:], strict=True)
        return Ratio([(ours.seconds - taken_off) / theirs.seconds for ours, theirs in pairs])

    @property
    def allowed_requests(self) -> float:
        segments = -(-self.table.rows // SEGMENT_ROWS)
        seconds = sum(cost.seconds for cost in self.costs["s3"])
        return self.runs * (REQUESTS_PER_SEGMENT * segments + REQUESTS_PER_RUN) + seconds


def phases(rounds: int) -> list[tuple[str, str]]:
    """Names in the order they run in, and their areas; each round begins with the other one."""
    turns = [(number, AREAS if number % 2 else AREAS[::-1]) for number in range(rounds + 1)]
    return [(f"{number}{'ab'[i]}-{area}", area) for number, order in turns for i, area in enumerate(order)]


def write_project(folder: Path, server: Server, bucket: S3Server, table: Table, rounds: int) -> None:
    connections = {
        "connections": {
            "sources": {"shop": server.config},
            "targets": {"warehouse": {"type": "duckdb", "path": "warehouse.duckdb"}},
        },
        "staging": {
            "local": {"type": "local", "path": "./staging"},
            "s3": {**bucket.config, "prefix": "bench"},
        },
        "state": {"default": {"type": "local", "path": "./state"}},
    }
    _write(folder / "config" / "connections.yml", connections)
    for name, area in phases(rounds):
        pipeline = {
            "name": name,
            "source": "shop",
            "target": "warehouse",
            "staging": area,
            "state": "default",
            "processing": {"batch_size": SEGMENT_ROWS},
            "s3": {"isolation_prefix": name},
        }
        tables = {table.name: {"cdc_strategy": "id_only", "cdc_id_column": KEY}}
        _write(folder / "config" / "pipelines" / f"{name}.yml", {"pipeline": pipeline, "tables": tables})


def _write(path: Path, data: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(data, sort_keys=False))


def measure(server: Server, bucket: S3Server, rows: int, rounds: int, folder: Path) -> Findings:
    give_memory(server)
    table = create(server, rows)
    read_through(server, table)
    write_project(folder, server, bucket, table, rounds)
    before = cpu_seconds(tree(bucket.pid))
    found = metered([sys.executable, str(SESSION), str(folder)], server, folder)
    s3_cpu = cpu_seconds(tree(bucket.pid)) - before
    costs: dict[str, list[Measured]] = {area: [] for area in AREAS}
    kept = {"local": folder / "staging", "s3": bucket.folder / "data" / bucket.bucket / "bench"}
    for name, area in phases(rounds):
        demand_complete(table, kept[area] / name)
        costs[area].append(found[name])
    requests = bucket.requests()
    del requests["CreateBucket"]
    return Findings(table, costs, requests, s3_cpu)


def report(found: Findings) -> Iterator[str]:
    rows = found.table.rows
    yield f"\n{rows:,} rows of 12 columns, MariaDB → Parquet, {found.runs - 1} rounds after one to warm up"
    for area in AREAS:
        measured = found.costs[area][1:]
        seconds = statistics.median(cost.seconds for cost in measured)
        cpu = statistics.median(cost.client_cpu for cost in measured)
        peak = max(cost.peak_bytes for cost in measured) / 1e6
        yield f"  {area:<6}{rows / seconds:>12,.0f} rows/s{seconds:>8.1f} s{cpu:>8.1f} s CPU{peak:>8,.0f} MB"
    per_million = found.runs * rows / 1e6
    yield f"  the S3 server took {found.s3_cpu / per_million:.1f} s of CPU for a million rows"
    split = ", ".join(f"{name} {count / per_million:.1f}" for name, count in found.requests.most_common())
    yield f"  requests for a million rows: {found.requests.total() / per_million:.1f} ({split})"
    yield "\nGoals"
    yield f"           S3 takes {found.ratio} the time of local, its server's share of these cores included"
    yield _goal(
        f"within {GOAL_SLOWDOWN:.0%} of local without that share: {found.ratio_without_server}",
        found.ratio_without_server.median <= 1 + GOAL_SLOWDOWN,
    )
    yield _goal(
        f"at most {REQUESTS_PER_SEGMENT} requests a segment, {REQUESTS_PER_RUN} a run and one a second: "
        f"{found.requests.total():,} of {found.allowed_requests:,.0f}",
        found.requests.total() <= found.allowed_requests,
    )


def _goal(words: str, reached: bool) -> str:  # noqa: FBT001 - it reads as a sentence
    return f"  {'reached' if reached else 'MISSED '}  {words}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.staging", description=__doc__)
    parser.add_argument("--rows", type=int, default=3_000_000, help="rows of the table (3,000,000)")
    parser.add_argument("--rounds", type=int, default=3, help="how often both are measured (3)")
    options = parser.parse_args()
    with (
        servers.mariadb() as mariadb,
        servers.fresh_database(mariadb) as database,
        servers.s3() as s3,
        servers.fresh_bucket(s3) as bucket,
        tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder,
    ):
        found = measure(database, bucket, options.rows, options.rounds, Path(folder))
    print("\n".join(report(found)))
    return 0 if found.requests.total() <= found.allowed_requests else 1


if __name__ == "__main__":
    sys.exit(main())

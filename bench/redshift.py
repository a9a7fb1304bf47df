"""`python -m bench.redshift`: MariaDB → S3 → the stand-in for Redshift, all in one command, and what arrived.

The stand-in says nothing about Redshift's own speed. What is measured is our part, and that a table of
this size arrives whole: as it is, and after a second run that brings changed rows.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

import tidegate
from bench.contract import ToolFailed
from bench.tables import CURSOR, KEY, Table, create, give_memory
from tests import servers
from tests.servers import S3Server, Server
from tidegate.s3 import S3Place
from tidegate.testing.redshift import Backend, RedshiftLocal

CHANGED = 10_000
_SUMS = "count(*), sum(id), sum(amount), sum(tax), sum(length(note)), sum(quantity), min({0}), max({0})"


@contextmanager
def stand_in(postgres: Server, s3: S3Server) -> Iterator[RedshiftLocal]:
    place = S3Place(
        "",
        region=s3.region,
        endpoint_url=s3.endpoint_url,
        access_key_id=s3.access_key_id,
        secret_access_key=s3.secret_access_key,
    )
    made = RedshiftLocal(Backend(postgres.host, postgres.port, postgres.user, postgres.password), place)
    try:
        yield made
    finally:
        made.close()


def write_project(folder: Path, source: Server, bucket: S3Server, target: dict[str, object]) -> None:
    connections = {
        "connections": {"sources": {"shop": source.config}, "targets": {"redshift": target}},
        "staging": {"files": {**bucket.config, "prefix": "staging"}},
        "state": {"default": {**bucket.config, "prefix": "state"}},
    }
    pipeline = {
        "name": "shop",
        "source": "shop",
        "target": "redshift",
        "staging": "files",
        "state": "default",
    }
    table = {"cdc_strategy": "hybrid", "cdc_timestamp_column": CURSOR, "cdc_id_column": KEY}
    (folder / "config" / "pipelines").mkdir(parents=True)
    (folder / "config" / "connections.yml").write_text(yaml.safe_dump(connections))
    tables = {"pipeline": pipeline, "tables": {"orders": table}}
    (folder / "config" / "pipelines" / "shop.yml").write_text(yaml.safe_dump(tables))


def sync(folder: Path) -> tuple[int, float]:
    """Rows that were loaded, and the seconds it took."""
    began = time.monotonic()
    [table] = tidegate.sync(folder).tables.values()
    if table.error is not None:
        raise ToolFailed(str(table.error))
    return table.rows_loaded, time.monotonic() - began


def demand_same(source: Server, behind: Server, table: Table) -> None:
    sums = f"SELECT {_SUMS.format(CURSOR)} FROM {table.name}"
    there, here = behind.execute(sums), source.execute(sums)
    if there != here:
        raise ToolFailed(f"the source has {here}, the target {there}")


def measure(source: Server, behind: Server, bucket: S3Server, rows: int, folder: Path) -> Iterator[str]:
    give_memory(source)
    table = create(source, rows)
    with stand_in(behind, bucket) as redshift:
        role = "arn:aws:iam::123456789012:role/copy"
        target = {**behind.config, "type": "redshift", "port": redshift.port, "iam_role": role}
        write_project(folder, source, bucket, {**target, "tls": {"mode": "disable"}})
        for words in ("all rows", f"{CHANGED:,} changed rows"):
            loaded, seconds = sync(folder)
            demand_same(source, behind, table)
            yield f"  {words:<20}{loaded:>12,} rows{seconds:>8.1f} s   all sums are the same on both sides"
            changed = (
                f"UPDATE {table.name} SET amount = amount + 1, {CURSOR} = '2025-01-01' WHERE id <= {CHANGED}"
            )
            source.execute(changed)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.redshift", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of the table (2,000,000)")
    options = parser.parse_args()
    with (
        servers.mariadb() as mariadb,
        servers.fresh_database(mariadb) as source,
        servers.postgres() as postgres,
        servers.fresh_database(postgres) as behind,
        servers.s3() as s3,
        servers.fresh_bucket(s3) as bucket,
        tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder,
    ):
        print(f"\n{options.rows:,} rows of 12 columns, MariaDB → S3 → the stand-in for Redshift, merged")
        for line in measure(source, behind, bucket, options.rows, Path(folder)):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

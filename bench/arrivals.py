"""Whether all rows of a table arrived."""

from __future__ import annotations

from pathlib import Path

import duckdb

from bench.contract import ToolFailed
from bench.tables import KEY, Table


def demand_complete(table: Table, folder: Path) -> int:
    """Count rows and add up ids in the Parquet files of a copy; return how many bytes the files have."""
    files = [str(path) for path in folder.rglob("*.parquet")]
    if not files:
        raise ToolFailed(f"there are no Parquet files below {folder}")
    with duckdb.connect() as connection:
        found = connection.execute(
            f"SELECT count(*), sum({KEY}::HUGEINT) FROM read_parquet(?)", [files]
        ).fetchone()
    if found != (table.rows, table.sum_of_ids):
        raise ToolFailed(f"the copy holds (rows, sum of ids) {found}, not {(table.rows, table.sum_of_ids)}")
    return sum(Path(path).stat().st_size for path in files)

"""Copies one table to Parquet files with dlt. Run by the Python of dlt's own environment.

Arguments: database URL, table, and a folder for each time it is to be copied.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["RUNTIME__DLTHUB_TELEMETRY"] = "false"

import dlt  # type: ignore[import-not-found]
from dlt.sources.sql_database import sql_table  # type: ignore[import-not-found]


def copy(url: str, table: str, folder: Path) -> None:
    rows = sql_table(
        credentials=url,
        table=table,
        backend="connectorx",
        backend_kwargs={"return_type": "arrow_stream"},
    )
    pipeline = dlt.pipeline(
        pipeline_name=f"bench_{folder.name}",
        pipelines_dir=str(folder / "work"),
        destination=dlt.destinations.filesystem(bucket_url=(folder / "out").as_uri()),
        dataset_name="bench",
    )
    pipeline.run(rows, loader_file_format="parquet")


def main(url: str, table: str, *folders: str) -> None:
    for folder in map(Path, folders):
        print(f"@begin {folder.name}", flush=True)
        copy(url, table, folder)
        print(f"@end {folder.name}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

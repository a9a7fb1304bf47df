"""Copies one table to Parquet files with Spark's JDBC reader.

Arguments: `cold` or `warm`, the drivers' jars, the reader's options as JSON, and a folder for each time the
table is to be copied. Or: `download`, the drivers' coordinates, Ivy's folder.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession


def session(**conf: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[*]")
    options = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    for key, value in {**options, "spark.driver.memory": "2g", **conf}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def copy(spark: SparkSession, options: dict[str, str], folder: str) -> None:
    spark.read.format("jdbc").options(**options).load().write.parquet(folder)


def warm_up(spark: SparkSession) -> None:
    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    spark.range(2).mapInArrow(same, "id long").collect()


def main(start: str, jars: str, options: str, *folders: str) -> None:
    spark = session(**{"spark.jars": jars})
    if start == "warm":
        warm_up(spark)
    for folder in folders:
        name = folder.rpartition("/")[2]
        print(f"@begin {name}", flush=True)
        copy(spark, json.loads(options), folder)
        print(f"@end {name}", flush=True)
    spark.stop()


if __name__ == "__main__":
    if sys.argv[1] == "download":
        session(**{"spark.jars.packages": sys.argv[2], "spark.jars.ivy": sys.argv[3]}).stop()
    else:
        main(*sys.argv[1:])

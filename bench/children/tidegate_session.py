"""Runs the pipelines of a project one after the other in one process whose Spark session is up.

Argument: the project's folder.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from tidegate.config.project import Project
from tidegate.spark.session import LazySession
from tidegate.state.clock import new_token, now
from tidegate.sync.library import open_parts, open_session
from tidegate.sync.pipeline import Request, Scope, sync_pipeline
from tidegate.sync.progress import Silence


def warm_up(spark: SparkSession) -> None:
    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    spark.range(2).mapInArrow(same, "id long").collect()


def run(project: Project, pipeline: str, session: LazySession) -> None:
    chosen = project.pipeline(pipeline)
    parts = open_parts(chosen, command="bench")
    try:
        result = sync_pipeline(
            chosen,
            Request(scope=Scope.EXTRACT),
            parts=parts,
            session=session,
            progress=Silence(),
            clock=now,
            token=new_token,
        )
    finally:
        parts.close()
    if result.exit_code != 0:
        sys.exit(str(result.to_json()))


def main(folder: str) -> None:
    project = Project.load(Path(folder))
    session = open_session(project)
    warm_up(session.get())
    for name in sorted(project.pipelines):
        print(f"@begin {name}", flush=True)
        run(project, name, session)
        print(f"@end {name}", flush=True)
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A sync of the demo's orders that stands still half-way, so that it can be killed there on any machine.

python -m tidegate.cli.demo.half_way PROJECT CHUNKS
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.config.project import Project
from tidegate.spark.session import LazySession
from tidegate.staging.local import LocalStaging
from tidegate.state.clock import new_token, now
from tidegate.sync.library import open_parts, spark_settings
from tidegate.sync.pipeline import Request, sync_pipeline
from tidegate.sync.progress import Silence

_CHUNK = re.compile(r"_batch_(\d+)_")
_LONGEST_WAIT_SECONDS = 120


@dataclass(frozen=True)
class _HalfWay(LocalStaging):
    """Takes the first chunks, and keeps the others waiting."""

    chunks: int

    @contextmanager
    def create(self, key: str) -> Iterator[Any]:
        chunk = _CHUNK.search(key)
        if chunk is not None and int(chunk[1]) > self.chunks:
            time.sleep(_LONGEST_WAIT_SECONDS)
        with super().create(key) as writer:
            yield writer


def main(folder: Path, chunks: int) -> int:
    project = Project.load(folder)
    pipeline = project.pipeline("shop")
    parts = open_parts(pipeline, command="tidegate sync -t orders")
    parts.staging = _HalfWay(folder / "staging", chunks)
    result = sync_pipeline(
        pipeline,
        Request(tables=("orders",)),
        parts=parts,
        session=LazySession(spark_settings(project)),
        progress=Silence(),
        clock=now,
        token=new_token,
    )
    return result.exit_code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))

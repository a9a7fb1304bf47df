"""A pipeline's job from beginning to end: fill, sync, prove, empty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tidegate.config.pipelines import Pipeline
from tidegate.core.errors import TidegateError
from tidegate.staging.layout import safe_name
from tidegate.sync.download import Download
from tidegate.sync.pipeline import Request
from tidegate.sync.result import SyncResult, TableStatus
from tidegate.sync.temporary import Cleaned, Counts, Temporary


@dataclass
class JobResult:
    """What a job did, as far as it came."""

    pipeline: str
    started_at: datetime
    download_seconds: float | None = None
    """None: nothing was downloaded."""
    finished_first: list[Cleaned] = field(default_factory=list)
    """What an earlier run had left to do."""
    sync: SyncResult | None = None
    counts: list[Counts] = field(default_factory=list)
    cleaned: list[Cleaned] = field(default_factory=list)

    def to_json(self, error: TidegateError | None, now: datetime) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "status": "success" if error is None else "failed",
            "download_seconds": None if self.download_seconds is None else round(self.download_seconds, 3),
            "finished_first": {one.table: one.to_json() for one in self.finished_first},
            "sync": self.sync.to_json() if self.sync else None,
            "counts": {one.table: one.to_json() for one in self.counts},
            "cleaned": {one.table: one.to_json() for one in self.cleaned},
            "error": str(error) if error else None,
            "started_at": self.started_at.isoformat(),
            "finished_at": now.isoformat(),
            "duration_seconds": round((now - self.started_at).total_seconds(), 3),
        }


class SyncFailed(TidegateError):
    """Tables of the job were not synced, so nothing else was done."""


@dataclass(frozen=True)
class Errand:
    temporary: Temporary
    download: Download | None
    """None: there is nothing to download, or it was not asked for."""
    sync: Callable[[Request], SyncResult]
    say: Callable[[str], None]

    def run(self, arguments: Sequence[str], result: JobResult) -> None:
        """Do all of it, writing down in `result` how far it came. Anything that fails ends it there."""
        self.temporary.demand_fit()
        with self.temporary.alone():
            result.finished_first += self.temporary.finish()
            if self.download is not None:
                self.say(f"downloading with {self.download.command[0]}")
                result.download_seconds = self.download.run(arguments)
            result.sync = self.sync(Request(tables=self.temporary.tables))
            demand_synced(result.sync)
            result.counts, result.cleaned = self.temporary.prove_and_clean()


def demand_synced(result: SyncResult) -> None:
    """Stop where a table was not synced; the first table's error says why, and how the command ends."""
    bad = [
        table for table in result.tables.values() if table.status in (TableStatus.FAILED, TableStatus.HELD)
    ]
    if not bad:
        return
    first = bad[0].error
    error = SyncFailed(
        f"{bad[0].table} was not synced, so nothing was counted or deleted: {first}",
        where=result.pipeline,
        hint="what was downloaded is where it was; run the job again with --sync-only",
    )
    error.exit_code = result.exit_code
    raise error


def download_of(pipeline: Pipeline) -> Download | None:
    """What a pipeline's job runs to fill its tables."""
    options = pipeline.demanded_job.download
    if options is None:
        return None
    return Download(
        options.command,
        options.directory or pipeline.root,
        pipeline.folder / "jobs" / f"{safe_name(pipeline.name)}.download",
        options.timeout,
        {name: value.get_secret_value() for name, value in options.environment.items()},
    )

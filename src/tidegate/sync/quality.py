"""Judging a run's rows before anything of them reaches the target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from zoneinfo import ZoneInfo

from tidegate.core import transitions
from tidegate.core.deadlines import Deadline
from tidegate.core.errors import QualityFailed, StagingError, TidegateError
from tidegate.core.quality import Evidence, Findings, OnFailure, Rules, Verdict, judge, stale
from tidegate.core.watermark import Event, Run, RunKind, StreamId, Watermark
from tidegate.spark.failures import in_words
from tidegate.spark.running import RunningJob
from tidegate.spark.session import LazySession
from tidegate.spark.uniqueness import repeated_keys
from tidegate.staging.contract import Staging
from tidegate.state.hold import HeldStream
from tidegate.sync.job import TableJob
from tidegate.sync.patience import Patience
from tidegate.sync.streams import owner

_PARALLELISM = 8


@dataclass(frozen=True)
class Judge:
    """What it takes to reach a verdict."""

    staging: Staging
    session: LazySession
    history: Callable[[StreamId], Sequence[Event]]
    clock: Callable[[], datetime]
    tell: Callable[[StreamId, str], None]
    """Told what is wrong with rows."""
    put_aside: Callable[[int], None]
    """Told of rows that are put aside though they break no rule by themselves."""
    note: Callable[[StreamId, str], None]
    """Told what else a person should know."""
    deadline: Deadline

    def conclude(self, held: HeldStream, job: TableJob) -> None:
        """End a run whose window has been read, as its rows deserve.

        This is the moment its segments become the target's to load. Raises `QualityFailed` if they do not.
        """
        rules, now = job.settings.validation, self.clock()
        verdict = self._verdict(held.mark, job, rules) if rules else Verdict()
        if rules is None or not verdict.failures:
            held.commit(*transitions.finish(held.mark, now))
            return
        self._tell(job, verdict.failures)
        whole = bool(verdict.whole) and job.kind is RunKind.INCREMENTAL
        match rules.on_failure:
            case OnFailure.WARN:
                held.commit(*transitions.finish(held.mark, now))
            case OnFailure.QUARANTINE if whole:
                self.put_aside(sum(segment.rows for segment in held.mark.current_run.staged))
                held.commit(*transitions.quarantine(held.mark, verdict.failures, now))
            case OnFailure.QUARANTINE if not verdict.whole:
                held.commit(*transitions.finish(held.mark, now))
            case _:
                held.commit(*transitions.reject(held.mark, verdict.failures, now))
                raise _failed(job, verdict)

    def idle(self, mark: Watermark, job: TableJob) -> None:
        """Judge a table that has nothing new: that may be what is wrong with it."""
        rules = job.settings.validation
        fresh = rules.freshness if rules else None
        if rules is None or fresh is None or fresh.column != job.settings.cursor.timestamp:
            return
        newest = _moment(mark, fresh.zone)
        failures = tuple(stale(fresh, newest, self.clock()))
        self._tell(job, failures)
        if failures and rules.on_failure is OnFailure.FAIL:
            raise _failed(job, Verdict(whole=failures))

    def _tell(self, job: TableJob, failures: tuple[str, ...]) -> None:
        for failure in failures:
            self.tell(job.stream, failure)

    def _verdict(self, mark: Watermark, job: TableJob, rules: Rules) -> Verdict:
        run = mark.current_run
        main = owner(job.stream) == job.stream
        evidence = Evidence(
            findings=run.findings or Findings(),
            now=self.clock(),
            earlier=self._earlier(job.stream) if rules.row_count and main else (),
            repeated=self._repeated(run, job) if rules.unique_key else 0,
        )
        if main:
            return judge(rules, evidence)
        # Ranges and rows without a cursor say nothing about how much is new, nor how new it is.
        return judge(Rules(rules.on_failure, rules.max_null_percentage, columns=rules.columns), evidence)

    def _earlier(self, stream: StreamId) -> list[int]:
        return [event.data["rows"] for event in self.history(stream) if event.kind == "extracted"]

    def _repeated(self, run: Run, job: TableJob) -> int:
        files = [segment.key for segment in run.staged if segment.rows]
        if not files:
            return 0
        parallelism = job.settings.parallelism or self.session.settings.cores or _PARALLELISM
        patience = Patience(partial(self.note, job.stream), self.deadline, str(job.stream))
        with RunningJob(
            self.session.get,
            lambda session: repeated_keys(session, self.staging, files, job.schema.key, parallelism),
            name=f"judge {job.stream}",
        ) as running:
            try:
                return patience.wait(running, self.clock)
            except TidegateError:
                raise
            except Exception as error:
                raise in_words(
                    error, self.session, StagingError, where=str(job.stream), again="the rows that are staged"
                ) from error


def _moment(mark: Watermark, zone: str) -> datetime | None:
    value = mark.extracted.position.values[0] if mark.extracted.position else None
    if not isinstance(value, datetime):
        return None
    return (value if value.tzinfo else value.replace(tzinfo=ZoneInfo(zone))).astimezone(UTC)


def _failed(job: TableJob, verdict: Verdict) -> QualityFailed:
    wrong = "; ".join(verdict.failures)
    return QualityFailed(
        f"the rows break the table's rules: {wrong}. Nothing was loaded, and the mark stays",
        where=str(job.stream),
        hint="correct the rows at the source and run it again, or relax `validation:`; "
        "`on_failure: quarantine` puts rows aside, `warn` only tells",
    )

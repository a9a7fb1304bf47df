"""A job gets its window once, and the mark moves when the job says that it went well."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from enum import Enum
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.servers import S3Server, Server
from tidegate.config.connection_models import S3State
from tidegate.core.errors import LeaseHeld, UsageError
from tidegate.s3 import S3Place
from tidegate.state.contract import Store
from tidegate.state.opening import open_store
from tidegate.state.s3 import S3Store
from tidegate.tracker import TimeWindow, TrackedRun, WatermarkTracker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOON = datetime(2025, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


class Table(Enum):
    WOS = "wos_pipeline"
    PPRN = 7


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["file", "sqlite", "delta"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}://{tmp_path}/state"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = open_store(url)
    yield store
    store.close()


Trackers = Callable[[], WatermarkTracker]


@pytest.fixture
def another(store: Store, clock: Clock) -> Iterator[Trackers]:
    """Trackers, each with a lease of its own, as if each were a job elsewhere."""
    numbers = count()
    opened = []

    def tracker() -> WatermarkTracker:
        opened.append(WatermarkTracker(store, clock=clock, token=lambda: f"t{next(numbers)}"))
        return opened[-1]

    yield tracker
    for item in opened:
        item.close()


@pytest.fixture
def tracker(another: Trackers) -> WatermarkTracker:
    return another()


# --- The three steps -----------------------------------------------------------


def test_three_steps_move_the_mark(tracker: WatermarkTracker, clock: Clock) -> None:
    first = tracker.start_pipeline_run("wos", "job_1")
    assert (first.status, first.job_id, first.last_processed_ts) == ("RUNNING", "job_1", None)
    assert first.current_run_ts == NOON - SECOND
    clock.now += HOUR
    # However often it is asked for, and however late: what is read is what is closed.
    assert tracker.get_delta_window("wos") == (None, NOON - SECOND)
    done = tracker.finalize_pipeline_run(first, "SUCCESS", records_processed=10)
    assert (done.status, done.job_id, done.records_processed) == ("SUCCESS", "job_1", 10)
    assert done.execution_duration == 3600.0

    second = tracker.start_pipeline_run("wos", "job_2")
    assert second.last_processed_ts == first.current_run_ts
    assert second.last_processed_version == 1_740_830_399_000
    assert second.created_at == done.updated_at > first.created_at
    assert tracker.get_delta_window("wos") == (NOON - SECOND, NOON + HOUR - SECOND)


def test_before_a_run_the_window_is_what_a_run_would_get(tracker: WatermarkTracker, clock: Clock) -> None:
    assert tracker.get_delta_window("wos") == TimeWindow(None, NOON - SECOND)
    with tracker.run("wos"):
        pass
    clock.now += HOUR
    assert tracker.get_delta_window("wos") == TimeWindow(NOON - SECOND, clock.now - SECOND)


def test_right_after_a_success_the_window_is_empty(tracker: WatermarkTracker, clock: Clock) -> None:
    with tracker.run("wos"):
        pass
    clock.now -= SECOND / 2  # clocks are also set back
    with tracker.run("wos") as run:
        assert run.window.start == run.window.end == NOON - SECOND


@pytest.mark.parametrize("ending", ["FAILED", "skipped"])
def test_only_success_moves_the_mark(tracker: WatermarkTracker, clock: Clock, ending: str) -> None:
    with tracker.run("wos"):
        pass
    clock.now += HOUR
    ended = tracker.finalize_pipeline_run(tracker.start_pipeline_run("wos"), ending, error="no disk")
    assert ended.status == ending.upper()
    clock.now += HOUR
    again = tracker.start_pipeline_run("wos")
    assert (again.last_processed_ts, again.current_run_ts) == (NOON - SECOND, NOON + 2 * HOUR - SECOND)
    assert again.error_message is None


def test_a_status_that_is_none_is_refused_and_the_run_goes_on(tracker: WatermarkTracker) -> None:
    record = tracker.start_pipeline_run("wos")
    with pytest.raises(UsageError, match="cannot end as 'DONE'"):
        tracker.finalize_pipeline_run(record, "DONE")
    assert tracker.finalize_pipeline_run(record, "success").status == "SUCCESS"
    with pytest.raises(UsageError, match="is over"):
        tracker.finalize_pipeline_run(record, "SUCCESS")


def test_the_record_of_a_run_that_is_over_does_not_end_the_hold_of_the_next(
    tracker: WatermarkTracker, another: Trackers
) -> None:
    over = tracker.start_pipeline_run("wos", "job_1")
    tracker.finalize_pipeline_run(over, "SUCCESS")
    under_way = tracker.start_pipeline_run("wos", "job_2")
    with pytest.raises(UsageError, match="the run of job job_1 is over"):
        tracker.finalize_pipeline_run(over, "SUCCESS")  # the cell of a notebook, run once more
    with pytest.raises(LeaseHeld, match="job_2"):
        another().start_pipeline_run("wos", "job_3")
    assert tracker.finalize_pipeline_run(under_way, "SUCCESS").status == "SUCCESS"


# --- Several jobs --------------------------------------------------------------


def test_a_second_job_of_a_pipeline_is_told_of_the_first(another: Trackers) -> None:
    another().start_pipeline_run("wos", "job_1")
    with pytest.raises(LeaseHeld, match="job job_1 of pipeline wos"):
        another().start_pipeline_run("wos", "job_2")
    assert another().start_pipeline_run("pprn", "job_2").status == "RUNNING"


def test_a_window_that_was_left_is_handed_on_unchanged(another: Trackers, clock: Clock) -> None:
    first = another()
    record = first.start_pipeline_run("wos", "job_1")
    first.close()
    clock.now += HOUR
    second = another()
    taken = second.start_pipeline_run("wos", "job_2")
    assert taken.current_run_ts == record.current_run_ts
    with pytest.raises(LeaseHeld, match="job_2"):
        first.finalize_pipeline_run(record, "SUCCESS")
    second.close()
    with pytest.raises(UsageError, match="job job_2 took it over"):
        first.finalize_pipeline_run(record, "SUCCESS")
    third = another()
    third.finalize_pipeline_run(taken, "SUCCESS")  # in another process, or task, than it was started in
    [entry] = third.lineage("wos")
    assert (entry.jobs, entry.status) == (("job_1", "job_2"), "SUCCESS")


def test_a_job_that_was_killed_leaves_its_window(url: str, another: Trackers) -> None:
    code = (
        "import os, signal, sys\n"
        "from tidegate import WatermarkTracker\n"
        "record = WatermarkTracker(sys.argv[1]).start_pipeline_run('wos', 'victim')\n"
        "print(record.current_run_ts.isoformat(), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, url], capture_output=True, text=True, check=False)
    end = datetime.fromisoformat(killed.stdout.strip())
    # The victim's clock was the real one. On this machine it is known to be dead, so nobody waits.
    assert another().start_pipeline_run("wos", "heir").current_run_ts == end


@pytest.mark.parametrize("server", ["postgres_database", "mariadb_database", "fresh_bucket"])
def test_a_window_is_kept_to_the_microsecond_on_every_server(
    request: pytest.FixtureRequest, clock: Clock, server: str
) -> None:
    clock.now = begun = NOON + timedelta(microseconds=123_457)
    store = store_on(request.getfixturevalue(server))
    left = WatermarkTracker(store, clock=clock)
    left.start_pipeline_run("wos", "job_1")
    left.close()
    clock.now += HOUR
    with WatermarkTracker(store, clock=clock) as tracker:
        with tracker.run("wos", "job_2") as run:
            assert run.window == (None, begun - SECOND)
        assert tracker.get_delta_window("wos") == (begun - SECOND, clock.now - SECOND)
        assert [entry.jobs for entry in tracker.lineage("wos")] == [("job_1", "job_2")]
    store.close()


def store_on(server: Server | S3Server) -> Store:
    if isinstance(server, Server):
        return open_store(server.url)
    return S3Store(S3Place.of(S3State.model_validate({**server.config, "prefix": "state"})))


# --- The short way -------------------------------------------------------------


def test_a_with_block_succeeds_fails_or_is_skipped(tracker: WatermarkTracker, clock: Clock) -> None:
    with tracker.run("wos", "good") as run:
        run.records_processed = 3
    clock.now += HOUR
    with pytest.raises(ZeroDivisionError), tracker.run("wos", "bad"):
        _ = 1 // 0
    clock.now += HOUR
    with tracker.run("wos", "idle") as run:
        assert run.window.start == NOON - SECOND
        run.skip("a holiday")
    told = [
        (entry.jobs, entry.status, entry.records_processed, entry.error_message)
        for entry in tracker.lineage("wos")
    ]
    assert told == [
        (("good",), "SUCCESS", 3, None),
        (("bad",), "FAILED", None, "ZeroDivisionError: integer division or modulo by zero"),
        (("idle",), "SKIPPED", None, "a holiday"),
    ]


def test_a_function_can_be_a_tracked_job(tracker: WatermarkTracker) -> None:
    @tracker.tracked(Table.WOS)
    def job(run: TrackedRun, factor: int) -> int:
        """Count."""
        run.records_processed = 21
        return run.records_processed * factor

    assert job(2) == 42
    assert job.__doc__ == "Count."
    [entry] = tracker.lineage("wos_pipeline")
    assert entry.records_processed == 21


async def nobody_waits(run: TrackedRun) -> None:
    run.records_processed = 1


def nobody_asks(run: TrackedRun) -> Iterator[int]:
    yield run.records_processed


@pytest.mark.parametrize("job", [nobody_waits, nobody_asks])
def test_a_function_that_has_done_nothing_when_it_returns_is_no_job(
    tracker: WatermarkTracker, job: Callable[[TrackedRun], object]
) -> None:
    """Its run would be a success before any row was read."""
    with pytest.raises(UsageError, match=f"`{job.__name__}` has done nothing yet when it returns"):
        tracker.tracked("wos")(job)


def test_the_jobs_own_error_is_seen_even_if_its_window_was_taken_over(another: Trackers) -> None:
    late, heir = another(), another()

    def work() -> None:
        late.close()  # as if its lease had ended
        heir.start_pipeline_run("wos", "job_2")
        heir.close()
        _ = 1 // 0

    with pytest.raises(ZeroDivisionError), late.run("wos", "job_1"):
        work()
    assert [entry.jobs for entry in late.lineage("wos")] == [("job_1", "job_2")]


def test_an_enum_names_a_pipeline_by_its_value_or_its_name(tracker: WatermarkTracker) -> None:
    with tracker.run(Table.WOS) as wos, tracker.run(Table.PPRN) as pprn:
        assert (wos.pipeline, pprn.pipeline) == ("wos_pipeline", "PPRN")
    with pytest.raises(UsageError, match="needs a name"):
        tracker.start_pipeline_run("")


# --- By hand -------------------------------------------------------------------


def test_a_correction_moves_the_mark_and_says_why(
    tracker: WatermarkTracker, another: Trackers, store: Store
) -> None:
    with tracker.run("wos"):
        pass
    with tracker.run("wos", "at work"), pytest.raises(LeaseHeld, match="at work"):
        another().correct("wos", NOON - HOUR, "too early")
    corrected = tracker.correct("wos", NOON - HOUR, "rows were late")
    assert (corrected.status, corrected.last_processed_ts) == ("READY", NOON - HOUR)
    assert tracker.start_pipeline_run("wos").last_processed_ts == NOON - HOUR
    tracker.close()
    tracker.correct("wos", None, "from the beginning")
    assert tracker.get_delta_window("wos").start is None
    assert [entry.status for entry in tracker.lineage("wos")] == ["SUCCESS", "SUCCESS", "SKIPPED"]
    [stored] = store.streams("wos").streams
    reasons = [event.data["reason"] for event in store.history(stored.stream) if event.kind == "manual"]
    assert reasons == ["rows were late", "from the beginning"]


def test_a_correction_needs_a_zone_and_a_reason(tracker: WatermarkTracker) -> None:
    with pytest.raises(UsageError, match="no time zone"):
        tracker.correct("wos", datetime(2025, 1, 1), "why")  # noqa: DTZ001 - that is the mistake
    with pytest.raises(UsageError, match="needs a reason"):
        tracker.correct("wos", NOON, " ")


# --- Spark ---------------------------------------------------------------------


def test_a_window_keeps_its_end_and_not_its_start(spark: SparkSession) -> None:
    moments = [NOON - SECOND, NOON, NOON + SECOND, NOON + 2 * SECOND]
    rows = [(moment.replace(tzinfo=None),) for moment in moments]
    frame = spark.createDataFrame(rows, "updated_at timestamp")
    kept = TimeWindow(NOON, NOON + SECOND).filter(frame, "updated_at").collect()
    assert [row.updated_at.replace(tzinfo=UTC) for row in kept] == [NOON + SECOND]
    assert TimeWindow(None, NOON).filter(frame, "updated_at").count() == 2
    days = frame.selectExpr("date(updated_at) AS day", "struct(date(updated_at) AS day) AS made").alias("t")
    for column in ("Day", "t.day", "made.day"):
        with pytest.raises(UsageError, match=f"`{column}` holds days"):
            TimeWindow(None, NOON).filter(days, column)

"""A run of the pipeline `gold` in a process of its own, which kills itself at a step.

Victims are forked from a server that has imported everything, and their Spark is a Spark Connect server: a
dozen of them take seconds, and what Spark was doing for one goes on when it is dead.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tidegate.config.project import Project
from tidegate.delta.lake import Lake
from tidegate.delta.library import DeltaPlans
from tidegate.delta.running import Processing
from tidegate.spark.session import LazySession, SparkSettings
from tidegate.state.opening import open_store
from tidegate.testing.faults import Fault, Faulty, Moment

_TOO_LONG = 300.0


@dataclass(frozen=True)
class Step:
    """The n-th call of a method of the store or of the lake, just before it or just after it.

    Calls that the lake makes of its own methods count too.
    """

    method: str
    event: str | None = None
    nth: int = 1
    moment: Moment = Moment.AFTER

    def __str__(self) -> str:
        return f"{self.moment} {self.event or self.method} {self.nth}"


def run_until(root: Path, remote: str, step: Step) -> bool:
    """Whether the run was killed at the step; False: it ended before it came to it."""
    return _killed(_run, root, remote, step)


def run_until_rows_are_written(root: Path, remote: str, table: str) -> bool:
    """Whether the run was killed once Spark had begun to write rows of a table. It goes on and commits."""
    return _killed(_run_watched, root, remote, table)


def _killed(run: Callable[..., None], root: Path, remote: str, at: Step | str) -> bool:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "pyspark.sql.connect.session", "deltalake"])
    victim = context.Process(target=run, args=(str(root), remote, at))
    victim.start()
    victim.join(_TOO_LONG)
    assert victim.exitcode in (0, -signal.SIGKILL), f"{at}: {victim.exitcode}"
    return victim.exitcode != 0


def _run_watched(root: str, remote: str, table: str) -> None:
    place = Path(root, "gold", table)

    def watch() -> None:
        while not list(place.glob("*.parquet")):
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    with DeltaPlans("gold", project=Project.load(Path(root))) as plans:
        Processing(plans, LazySession(SparkSettings(remote=remote)), Lake(f"{root}/gold")).run()


def _run(root: str, remote: str, step: Step) -> None:
    fault = Fault(step.method, step.nth, step.moment, step.event)
    store = open_store(f"delta://{root}/state")
    lake = Lake(f"{root}/gold")
    of_store = step.event is not None
    with DeltaPlans(
        "gold", project=Project.load(Path(root)), store=Faulty(store, fault) if of_store else store
    ) as plans:
        session = LazySession(SparkSettings(remote=remote))
        if not of_store:
            object.__setattr__(lake, step.method, getattr(Faulty(lake, fault), step.method))
        Processing(plans, session, lake).run()

"""A Spark job in a thread of its own, which can be watched and called off.

Spark waits without end for an executor that is free, so whoever waits for the answer asks how many tasks are
at work. And nobody leaves a job behind: its tasks would read the source beside those of the next attempt.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from tidegate.core.errors import Interrupted
from tidegate.spark.session import is_classic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Answer = TypeVar("Answer")

_CALL_OFF_SECONDS = 5.0
_CALL_OFF_PAUSE = 0.2


class RunningJob(Generic[Answer]):
    """The job begins at once; leaving the context calls it off if it has not ended.

    The session is opened in the same thread: a cluster can keep us waiting for it too.
    """

    def __init__(
        self, open_session: Callable[[], SparkSession], work: Callable[[SparkSession], Answer], name: str
    ) -> None:
        self.answer: Future[Answer] = Future()
        self._open_session = open_session
        self._work = work
        self._view: _View | None = None
        self._called_off = False
        # It does not keep the process alive: what its tasks stage has receipts.
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def __enter__(self) -> RunningJob[Answer]:
        return self

    def __exit__(self, *error: object) -> None:
        self.call_off()

    @property
    def tasks(self) -> int:
        """How many are at work."""
        return self._view.tasks() if self._view else 0

    def call_off(self) -> None:
        """End it, unless it has ended. A job that is only just being submitted cannot be called off yet."""
        self._called_off = True
        until = time.monotonic() + _CALL_OFF_SECONDS
        while self._view and not self.answer.done() and time.monotonic() < until:
            with suppress(Exception):  # nothing is lost with a Spark that cannot be asked any more
                self._view.call_off()
            wait([self.answer], _CALL_OFF_PAUSE)

    def _run(self) -> None:
        try:
            self.answer.set_result(self._worked())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for the answer
            self.answer.set_exception(error)

    def _worked(self) -> Answer:
        session = self._open_session()
        view = _view(session)
        with view.watching():
            self._view = view
            if self._called_off:
                raise Interrupted("the job was called off before it began")
            return self._work(session)


class _View(Protocol):
    """A session's jobs of one thread, as seen from another one."""

    def watching(self) -> AbstractContextManager[None]:
        """Entered by the thread whose jobs these are."""
        ...

    def tasks(self) -> int: ...

    def call_off(self) -> None: ...


def _view(session: SparkSession) -> _View:
    name = f"tidegate-{secrets.token_hex(8)}"
    return _Classic(session, name) if is_classic(session) else _Connect(session, name)


class _Classic:
    """Asks the driver's own book-keeping: the one thing for which DataFrames have no question."""

    def __init__(self, session: SparkSession, group: str) -> None:
        self._context = session.sparkContext
        self._group = group

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._context.setJobGroup(self._group, "tidegate")
        yield

    def tasks(self) -> int:
        from py4j.protocol import Py4JError

        tracker = self._context.statusTracker()
        try:
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group)]
            stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
        except Py4JError:  # a JVM that is gone; then the answer is an error
            return 0
        return sum(stage.numActiveTasks for stage in stages if stage)

    def call_off(self) -> None:
        self._context.cancelJobGroup(self._group)


class _Connect:
    """Hears what the server reports to the thread that waits for its answer."""

    def __init__(self, session: SparkSession, tag: str) -> None:
        self._session = session
        self._tag = tag
        self._thread = 0
        self._tasks = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._thread = threading.get_ident()
        self._session.addTag(self._tag)
        self._session.registerProgressHandler(self._hear)  # type: ignore[arg-type]
        try:
            yield
        finally:
            self._session.removeProgressHandler(self._hear)  # type: ignore[arg-type]

    def tasks(self) -> int:
        return self._tasks

    def call_off(self) -> None:
        self._session.interruptTag(self._tag)

    def _hear(self, *, inflight_tasks: int, done: bool, **_: Any) -> None:
        """Told of all jobs of the session, each in the thread that waits for it."""
        if threading.get_ident() == self._thread:
            self._tasks = 0 if done else inflight_tasks

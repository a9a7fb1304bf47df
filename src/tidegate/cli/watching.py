"""Those who watch a sync from the command line: the terminal, the log, and whoever wants it to stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidegate.cli.signals import Stop
from tidegate.core.receipts import Receipt
from tidegate.core.watermark import StreamId
from tidegate.observe.terminal import Watcher
from tidegate.spark.session import LazySession
from tidegate.sync.result import TableResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Watched:
    """Passes on what a sync tells to all who listen. After each committed step it can be stopped safely."""

    def __init__(self, stop: Stop, *listeners: Watcher) -> None:
        self._stop = stop
        self._listeners = listeners

    def started(self, stream: StreamId) -> None:
        self._stop.check()
        for listener in self._listeners:
            listener.started(stream)

    def planned(self, stream: StreamId, chunks: int, batch_size: int) -> None:
        for listener in self._listeners:
            listener.planned(stream, chunks, batch_size)

    def staged(self, stream: StreamId, receipt: Receipt) -> None:
        for listener in self._listeners:
            listener.staged(stream, receipt)
        self._stop.check()

    def loaded(self, stream: StreamId, rows: int) -> None:
        for listener in self._listeners:
            listener.loaded(stream, rows)
        self._stop.check()

    def note(self, stream: StreamId, text: str) -> None:
        for listener in self._listeners:
            listener.note(stream, text)
        self._stop.check()

    def finished(self, stream: StreamId, result: TableResult) -> None:
        for listener in self._listeners:
            listener.finished(stream, result)

    def remark(self, text: str) -> None:
        for listener in self._listeners:
            listener.remark(text)


@dataclass
class AnnouncedSession(LazySession):
    """A session that says when it starts, since that takes a few seconds."""

    before: list[Callable[[], None]] = field(default_factory=list)
    after: list[Callable[[], None]] = field(default_factory=list)

    def get(self) -> SparkSession:
        if self.started:
            return super().get()
        for announce in self.before:
            announce()
        session = super().get()
        for announce in self.after:
            announce()
        return session

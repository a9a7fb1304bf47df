"""What a running sync tells those who watch it. The terminal, the log and the tests each listen."""

from __future__ import annotations

from typing import Protocol

from tidegate.core.receipts import Receipt
from tidegate.core.watermark import StreamId
from tidegate.sync.result import TableResult


class Progress(Protocol):
    def started(self, stream: StreamId) -> None: ...

    def planned(self, stream: StreamId, chunks: int, batch_size: int) -> None:
        """A round of a window was cut into this many chunks of about this many rows."""
        ...

    def staged(self, stream: StreamId, receipt: Receipt) -> None: ...

    def loaded(self, stream: StreamId, rows: int) -> None: ...

    def note(self, stream: StreamId, text: str) -> None:
        """Something a person should know, though nothing is wrong."""
        ...

    def finished(self, stream: StreamId, result: TableResult) -> None: ...


class Silence:
    """Nobody watches."""

    def started(self, stream: StreamId) -> None:
        pass

    def planned(self, stream: StreamId, chunks: int, batch_size: int) -> None:
        pass

    def staged(self, stream: StreamId, receipt: Receipt) -> None:
        pass

    def loaded(self, stream: StreamId, rows: int) -> None:
        pass

    def note(self, stream: StreamId, text: str) -> None:
        pass

    def finished(self, stream: StreamId, result: TableResult) -> None:
        pass

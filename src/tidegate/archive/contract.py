"""What a cycle works with: the place, the store, the table, the mark, who packs, and who watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from tidegate.archive.config import ArchiveConfig
from tidegate.archive.files import Files
from tidegate.archive.listing import FileTable
from tidegate.archive.mark import Mark
from tidegate.archive.packing import Packing
from tidegate.archive.place import ArchivePlace
from tidegate.archive.records import PartReceipt
from tidegate.core.leases import Holder
from tidegate.core.windows import Window
from tidegate.state.contract import Store


class Packer(Protocol):
    """Who packs the parts of a window: this process, or Spark."""

    def pack(self, work: Packing, parts: Sequence[str]) -> Iterator[PartReceipt | None]:
        """The receipts as they come, in any order; nothing for a part that a file keeps from ending."""
        ...


class Marks(Protocol):
    """Where the mark is kept."""

    def read(self) -> Mark | None: ...

    def begin(self, mark: Mark) -> Mark: ...

    def move(self, before: datetime, after: datetime) -> None: ...


class Watching(Protocol):
    """Somebody watches, and may want to stop."""

    def check(self) -> None:
        """A safe point: raises if the work shall end here."""
        ...

    def wait(self, seconds: float) -> bool:
        """Sleep; True if somebody wants to stop."""
        ...

    def note(self, text: str) -> None: ...

    def planned(self, window: Window, files: int, parts: int) -> None: ...

    def packed(self, receipt: PartReceipt) -> None: ...


@dataclass(frozen=True)
class Share:
    """The parts that one of several workers takes: every n-th. Parts do not depend on how many there are."""

    worker: int = 0
    workers: int = 1

    def takes(self, part: str) -> bool:
        return int(part, 16) % self.workers == self.worker

    @property
    def name(self) -> str:
        return f"share {self.worker} of {self.workers}"

    @property
    def others(self) -> list[Share]:
        return [replace(self, worker=worker) for worker in range(self.workers) if worker != self.worker]


@dataclass
class Tools:
    """What a cycle works with. The clock and randomness come from outside."""

    config: ArchiveConfig
    place: ArchivePlace
    store: Store
    table: FileTable
    mark: Marks
    packer: Packer
    holder: Holder
    clock: Callable[[], datetime]
    token: Callable[[], str]
    files: Files

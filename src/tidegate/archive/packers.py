"""Who packs: this process, or the tasks of a Spark session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidegate.archive.packing import Packing, pack
from tidegate.archive.records import PartReceipt


class InProcess:
    """One part after the other, here."""

    def pack(self, work: Packing, parts: Sequence[str]) -> Iterator[PartReceipt | None]:
        for part in parts:
            yield pack(work, part)

"""What a benchmark asks of a tool."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.meter import Measured
from bench.tables import Table
from tests.servers import Server

COLD = "cold"
"""One command, from its start to its end."""
FIRST = "session up"
"""The process and its session are up and have run something trivial; the table is the first."""
SECOND = "second table"
"""The same process again, after it has copied an equal table."""
PHASES = (COLD, FIRST, SECOND)


class ToolFailed(RuntimeError):
    """A tool did not run to its end, or its copy is not complete."""


@dataclass(frozen=True)
class Copy:
    """One finished copy of a table: what it cost, and where its files are."""

    phase: str
    cost: Measured
    folder: Path
    """Every Parquet file below belongs to the copy, and nothing else does."""


class Tool(Protocol):
    @property
    def name(self) -> str: ...

    def prepare(self) -> None:
        """Install what is missing, outside of what is measured."""
        ...

    def cold(self, server: Server, table: Table, folder: Path) -> list[Copy]:
        """Copy the table once, by a command that starts from nothing."""
        ...

    def warm(self, server: Server, table: Table, folder: Path) -> list[Copy]:
        """Copy it twice in one process that is up; nothing where the tool has no such thing."""
        ...

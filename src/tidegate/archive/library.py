"""The archiver for programs.

archive = tidegate.Archive("watermark-config.yaml")
result = archive.run_cycle()
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from tidegate.archive.config import ArchiveConfig, read_config
from tidegate.archive.cycle import Cycle, CycleResult, Share, Tools, Watching
from tidegate.archive.files import Files
from tidegate.archive.listing import FileTable
from tidegate.archive.mark import MarkTable
from tidegate.archive.packers import InProcess
from tidegate.archive.place import ArchivePlace, LocalPlace
from tidegate.archive.records import PartReceipt
from tidegate.core.windows import Window
from tidegate.sources.postgresql import PostgreSQL
from tidegate.state.clock import new_token, now
from tidegate.state.opening import open_store
from tidegate.state.process import this_process


class Unwatched:
    """Nobody watches, and nobody wants to stop."""

    def check(self) -> None: ...

    def wait(self, seconds: float) -> bool:
        import time

        time.sleep(seconds)
        return False

    def note(self, text: str) -> None: ...

    def planned(self, window: Window, files: int, parts: int) -> None: ...

    def packed(self, receipt: PartReceipt) -> None: ...


class Archive:
    """An archive, by its configuration."""

    def __init__(self, config: ArchiveConfig | str | Path) -> None:
        self.config = config if isinstance(config, ArchiveConfig) else read_config(Path(config))

    def run_cycle(
        self,
        *,
        workers: int = 1,
        worker_id: int = 0,
        late: bool = False,
        watching: Watching | None = None,
    ) -> CycleResult:
        """Archive one window: everything between the mark and the cut-off."""
        with open_tools(self.config, command="tidegate.Archive") as tools:
            return Cycle(tools, watching or Unwatched(), Share(worker_id, workers), late).run()


@contextmanager
def open_tools(
    config: ArchiveConfig, *, command: str, clock: Callable[[], datetime] = now
) -> Iterator[Tools]:
    """What a cycle works with. Nothing is connected to yet; `command` is what leases say holds them."""
    place = open_place(config)
    table = FileTable(config.database, PostgreSQL(config.files_login))
    try:
        yield Tools(
            config=config,
            place=place,
            store=open_store(place.state_url),
            table=table,
            mark=MarkTable(config.mark_login),
            packer=InProcess(),
            holder=this_process(command),
            clock=clock,
            token=new_token,
            files=open_files(config),
        )
    finally:
        table.close()


def open_place(config: ArchiveConfig) -> ArchivePlace:
    return LocalPlace(Path(config.packer.output_dir))


def open_files(config: ArchiveConfig) -> Files:
    root = config.packer.input_dir
    return Files(os.fsencode(root) if root is not None else None)

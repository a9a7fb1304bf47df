"""The archiver for programs.

archive = tidegate.Archive("watermark-config.yaml")
result = archive.run_cycle()
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from tidegate.archive.config import ArchiveConfig, read_config
from tidegate.archive.contract import Packer, Share, Tools, Watching
from tidegate.archive.cycle import Cycle
from tidegate.archive.files import Files
from tidegate.archive.listing import FileTable
from tidegate.archive.mark import MarkTable
from tidegate.archive.packers import InProcess, OnSpark
from tidegate.archive.place import ArchivePlace, LocalPlace
from tidegate.archive.records import PartReceipt
from tidegate.archive.results import CycleResult
from tidegate.archive.s3_place import S3ArchivePlace
from tidegate.core.windows import Window
from tidegate.s3 import S3Place
from tidegate.sources.postgresql import PostgreSQL
from tidegate.spark.session import LazySession, SparkSettings
from tidegate.state.clock import new_token, now
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
    config: ArchiveConfig,
    *,
    command: str,
    session: LazySession | None = None,
    clock: Callable[[], datetime] = now,
) -> Iterator[Tools]:
    """What a cycle works with. Nothing is connected to yet; `command` is what leases say holds them."""
    place = open_place(config)
    store = place.store()
    table = FileTable(config.database, PostgreSQL(config.files_login))
    try:
        yield Tools(
            config=config,
            place=place,
            store=store,
            table=table,
            mark=MarkTable(config.mark_login),
            packer=_packer(config, session),
            holder=this_process(command),
            clock=clock,
            token=new_token,
            files=open_files(config),
        )
    finally:
        table.close()
        store.close()


def open_session(config: ArchiveConfig) -> LazySession:
    """The session that packs. It starts when there is something to pack."""
    return LazySession(spark_settings(config))


def spark_settings(config: ArchiveConfig) -> SparkSettings:
    options = config.spark
    return SparkSettings(master=options.master, remote=options.remote, conf=dict(options.conf))


def _packer(config: ArchiveConfig, session: LazySession | None) -> Packer:
    match config.packer.engine:
        case "process":
            return InProcess()
        case "spark":
            return OnSpark(session or open_session(config))


def open_place(config: ArchiveConfig) -> ArchivePlace:
    output = config.packer.output_dir
    if not output.startswith("s3://"):
        return LocalPlace(Path(output.removeprefix("file://")))
    named = S3Place.at(output)
    return S3ArchivePlace(replace(_access(config), bucket=named.bucket, prefix=named.prefix))


def open_files(config: ArchiveConfig) -> Files:
    root = config.packer.input_dir
    return Files(os.fsencode(root) if root is not None else None, _access(config))


def _access(config: ArchiveConfig) -> S3Place:
    given = {name: value for name, value in config.packer.s3 if value is not None}
    plain: dict[str, Any] = {
        name: value.get_secret_value() if isinstance(value, SecretStr) else value
        for name, value in given.items()
    }
    return S3Place("", **plain)

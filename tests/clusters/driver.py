"""A process of its own that runs syncs on one Spark session: a process can have but one of each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.system.syncing import Notes, own_parts, sync_place
from tidegate.config.project import Project
from tidegate.spark.session import LazySession
from tidegate.sync.library import open_session
from tidegate.sync.parts import Parts
from tidegate.sync.pipeline import Request
from tidegate.sync.result import SyncResult

Alter = Callable[[Parts], None]


def _unaltered(_: Parts) -> None:
    pass


@dataclass(frozen=True)
class Driver:
    _process: ProcessPoolExecutor

    def sync(self, folder: Path, request: Request, alter: Alter = _unaltered) -> tuple[SyncResult, list[str]]:
        """The result of a sync, and what it had to say."""
        return self.begin(folder, request, alter).result()

    def begin(
        self, folder: Path, request: Request, alter: Alter = _unaltered
    ) -> Future[tuple[SyncResult, list[str]]]:
        """`alter` is called there, on the parts of the sync."""
        return self._process.submit(_sync, folder, request, alter)

    def ask(self, question: Callable[[LazySession], Any], folder: Path) -> Any:
        """What `question` answers there, on the session of the project in a folder."""
        return self._process.submit(_ask, question, folder).result()


@contextmanager
def driver() -> Iterator[Driver]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        yield Driver(process)


def _sync(folder: Path, request: Request, alter: Alter) -> tuple[SyncResult, list[str]]:
    notes, parts = Notes(), own_parts(folder)
    alter(parts)
    return sync_place(folder, request, session_of(folder), notes, parts), notes.texts


def _ask(question: Callable[[LazySession], Any], folder: Path) -> Any:
    return question(session_of(folder))


def session_of(folder: Path) -> LazySession:
    """The session of this process for the Spark that a project names."""
    session = open_session(Project.load(folder))
    return _SESSIONS.setdefault(session.settings.remote or session.settings.master, session)


_SESSIONS: dict[str, LazySession] = {}

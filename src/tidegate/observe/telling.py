"""What receivers of alerts have been told: a small file for each pipeline.

It can be made again, in the sense that without it every trouble is news once more and nobody hears that an
earlier one is over.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping, Set
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any, Protocol
from urllib.parse import quote

from tidegate.config.alerts import Kind

_LOOK_AGAIN = 0.05
"""Seconds between two looks whether another run has finished telling."""


@dataclass(frozen=True, slots=True)
class Told:
    """What was said of a condition that is not over yet."""

    message: str
    since: datetime
    at: datetime
    """When it was last said."""


class Memory(Protocol):
    def recall(self, receiver: str) -> dict[tuple[Kind, str], Told]: ...

    def remember(
        self, receiver: str, told: Mapping[tuple[Kind, str], Told], over: Set[tuple[Kind, str]]
    ) -> list[str]:
        """Keep what was told; returns why it could not be kept, as warnings."""
        ...

    def turn(self, patience: timedelta) -> AbstractContextManager[None]:
        """While this lasts nobody else tells the same receivers, unless he has waited for this long."""
        ...


def folder_memory(folder: Path, pipeline: str) -> Memory:
    return FileMemory(folder / "alerts" / f"{quote(pipeline, safe=' ')}.json")


@dataclass(frozen=True)
class FileMemory:
    path: Path

    def recall(self, receiver: str) -> dict[tuple[Kind, str], Told]:
        return _told(self._read().get(receiver))

    def remember(
        self, receiver: str, told: Mapping[tuple[Kind, str], Told], over: Set[tuple[Kind, str]]
    ) -> list[str]:
        """Another run may write at the same time: each changes only what it has said itself."""
        try:
            with self._locked():
                data = self._read()
                kept = {key: said for key, said in _told(data.get(receiver)).items() if key not in over}
                self._write({**data, receiver: [_line(key, said) for key, said in {**kept, **told}.items()]})
        except OSError as error:
            return [f"what was alerted cannot be remembered in {self.path}: {error.strerror}"]
        return []

    @contextmanager
    def turn(self, patience: timedelta) -> Iterator[None]:
        """Whoever cannot have it tells all the same: rather twice than never."""
        until = time.monotonic() + patience.total_seconds()
        with ExitStack() as opened:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                file = opened.enter_context(self.path.with_suffix(".turn").open("w"))
                while not _taken(file) and time.monotonic() < until:
                    time.sleep(_LOOK_AGAIN)
            except OSError:
                pass  # that nothing can be written here is told when it is to be remembered
            yield

    def _read(self) -> dict[str, Any]:
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}  # what cannot be read was not told: then it is told again
        return data if isinstance(data, dict) else {}

    def _write(self, data: dict[str, Any]) -> None:
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        beside.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
        beside.replace(self.path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Held for the moment of writing alone, so nobody waits for a receiver here."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_suffix(".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _taken(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _line(key: tuple[Kind, str], said: Told) -> dict[str, str]:
    return {
        "kind": key[0].value,
        "stream": key[1],
        "message": said.message,
        "since": said.since.isoformat(),
        "at": said.at.isoformat(),
    }


def _told(lines: Any) -> dict[tuple[Kind, str], Told]:
    try:
        return {
            (Kind(line["kind"]), line["stream"]): Told(
                line["message"], _moment(line["since"]), _moment(line["at"])
            )
            for line in lines or ()
        }
    except (TypeError, KeyError, ValueError):
        return {}


def _moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError("a moment without a zone was not written here")
    return found

"""The command that fills a temporary table: run, waited for, and never left behind unnoticed.

A lock on a file is handed down to the command and to whatever it starts. While any of them lives the lock is
held, also when we are killed: so nobody begins a second download beside a first one.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from tidegate.core.errors import ConfigError, DownloadFailed, Interrupted, LeaseHeld
from tidegate.observe.figures import span

_STANDARD_ERROR = 2
_NAP_SECONDS = 0.05


@dataclass(frozen=True)
class Download:
    command: tuple[str, ...]
    directory: Path
    lock: Path
    timeout: timedelta
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    grace: timedelta = timedelta(seconds=10)
    """How long a command that is asked to end may take."""
    patience: timedelta = timedelta(seconds=5)
    """How long processes that were ended may take to be gone."""

    def run(self, arguments: Sequence[str] = ()) -> float:
        """Run the command to its end; returns the seconds it took. Whatever it leaves running is ended."""
        began = time.monotonic()
        with _locked(self.lock, self.patience) as descriptor:
            process = self._started(arguments, descriptor)
            try:
                code = process.wait(self.timeout.total_seconds())
            except subprocess.TimeoutExpired:
                raise Interrupted(
                    f"the download command did not end within {span(self.timeout)} and was stopped",
                    where=self.command[0],
                    hint="nothing was synced or deleted; raise job.download.timeout, or look at the command",
                ) from None
            finally:
                _end(process, self.grace)
        self._demand_nobody_left()
        if code != 0:
            raise DownloadFailed(
                f"the download command ended with {_ending(code)}",
                where=self.command[0],
                hint="nothing was synced or deleted; what it has brought is moved by the next run, "
                "or now with --sync-only",
            )
        return time.monotonic() - began

    def _demand_nobody_left(self) -> None:
        try:
            with _locked(self.lock, self.patience):
                return
        except LeaseHeld:
            raise DownloadFailed(
                "the download command has ended and left processes behind that are still at work",
                where=self.command[0],
                hint="let the command wait for what it starts; "
                f"`fuser {self.lock}` tells which processes those are",
            ) from None

    def _started(self, arguments: Sequence[str], descriptor: int) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                [*self.command, *arguments],
                cwd=self.directory,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=_STANDARD_ERROR,  # our own standard output may belong to a program
                start_new_session=True,  # a group of its own, which can be ended as a whole
                pass_fds=(descriptor,),
            )
        except OSError as error:
            raise ConfigError(
                f"the download command cannot be run: {error.strerror}",
                where=self.command[0],
                hint="check job.download.command and job.download.directory",
            ) from error


@contextmanager
def _locked(path: Path, patience: timedelta) -> Iterator[int]:
    """The lock, handed out as the descriptor that holds it. It is free when all who have it are gone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + patience.total_seconds()
    with path.open("w") as file:
        while not _taken(file.fileno()):
            if time.monotonic() > end:
                raise LeaseHeld(
                    "the download of an earlier run is still at work",
                    where=str(path),
                    hint=f"wait for it to end, or end it: `fuser {path}` tells which processes those are",
                )
            time.sleep(_NAP_SECONDS)
        yield file.fileno()


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _end(process: subprocess.Popen[bytes], grace: timedelta) -> None:
    """End the whole group: politely while its leader lives, then for certain."""
    with suppress(ProcessLookupError):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace.total_seconds())
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _ending(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"

"""Syncs that a scheduler starts, finds again and never starts twice.

A scheduler has a name for what it wants done once, and keeps it when it tries again: that is the execution's
id. Its folder holds all there is to know, so that any process can look: the one that started it may be gone.

    command.json   what was started
    alive          touched every few seconds as long as it runs
    log            what it said
    result.json    what `--json-output` wrote
    exit           its exit code, when it has ended
    told           that the scheduler has heard that it ended well

Needs the standard library alone: schedulers have environments of their own, and run `tidegate` in another.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

BEAT_SECONDS = 5.0
DEAD_AFTER_SECONDS = 60.0
"""Without a sign of life for so long, an execution is taken to have died."""
KEPT_SECONDS = 30 * 86_400.0
"""How long an execution that has ended is remembered: no scheduler tries again after that."""
_LONGEST_NAME = 100


@dataclass(frozen=True)
class Sync:
    """A call of `tidegate sync`."""

    project: str
    pipeline: str
    tables: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    """Further options, such as `--extract-only`."""
    program: tuple[str, ...] = ("tidegate",)
    """How to call Tidegate: mostly the path of the command in the environment that it is installed in."""

    def words(self, execution_id: str, result: Path) -> list[str]:
        tables = [word for table in self.tables for word in ("-t", table)]
        told = ["--execution-id", execution_id, "--json-output", str(result)]
        return [
            *self.program,
            "--project",
            self.project,
            "sync",
            "-p",
            self.pipeline,
            *tables,
            *self.options,
            *told,
        ]


@dataclass(frozen=True)
class Outcome:
    exit_code: int | None
    """None: it died without a word."""
    result: Any
    """What `tidegate sync --json-output` says; None if it said nothing."""
    log: str

    @property
    def words(self) -> str:
        """What went wrong, for people."""
        if self.exit_code is None:
            return "the sync died; running it again loses nothing and doubles nothing"
        reason = _EXIT_CODES.get(self.exit_code, "something failed, and what did not was done")
        last = "\n".join(self.log.strip().splitlines()[-_LAST_LINES:])
        return f"tidegate sync ended with exit code {self.exit_code}: {reason}\n{last}"


_LAST_LINES = 20
_EXIT_CODES = {
    2: "bad usage or configuration",
    3: "another run holds a table",
    4: "verification found differences",
    5: "cannot connect",
    130: "interrupted; the state is intact",
}
WRONGLY_CONFIGURED = 2
"""Trying again does not help."""


@dataclass(frozen=True)
class Execution:
    folder: Path

    @property
    def ended(self) -> bool:
        return (self.folder / "exit").exists()

    @property
    def alive(self) -> bool:
        """Whether it runs, as far as its signs of life tell."""
        try:
            age = _age(self.folder / "alive")
        except FileNotFoundError:
            return False
        return not self.ended and age < DEAD_AFTER_SECONDS

    def outcome(self) -> Outcome | None:
        """How it ended; None as long as it runs."""
        if self.alive:
            return None
        code = _text(self.folder / "exit")
        result = _text(self.folder / "result.json")
        log = _text(self.folder / "log") or ""
        return Outcome(int(code) if code else None, json.loads(result) if result else None, log)

    def wait(self, poll_seconds: float = 1.0) -> Outcome:
        while (outcome := self.outcome()) is None:
            time.sleep(poll_seconds)
        return outcome

    def tell(self) -> None:
        """Note that the scheduler knows how it ended: whoever asks for it from now on wants it done again."""
        (self.folder / "told").touch()

    def stop(self) -> None:
        """Ask it to end, if it runs on this machine. It does so at a point from which it can go on."""
        told = json.loads(_text(self.folder / "command.json") or "{}")
        if self.alive and told.get("host") == os.uname().nodename:
            os.kill(told["pid"], signal.SIGTERM)


def start(sync: Sync, execution_id: str, executions: Path | str) -> Execution:
    """Start a sync that goes on without us, unless it runs already or has been done and nobody knows yet.

    One that failed or died is started again: it goes on where the other one ended.
    """
    execution = Execution(Path(executions) / folder_name(execution_id))
    told = (execution.folder / "told").exists()
    done = execution.ended and _text(execution.folder / "exit") == "0" and not told
    if done or execution.alive:
        return execution
    _forget_old(Path(executions))
    execution.folder.mkdir(parents=True, exist_ok=True)
    for name in ("exit", "told", "result.json", "alive"):
        (execution.folder / name).unlink(missing_ok=True)
    (execution.folder / "alive").touch()
    words = sync.words(execution_id, execution.folder / "result.json")
    launch = [sys.executable, "-I", __file__, str(execution.folder), *words]
    pid = int(subprocess.run(launch, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True).stdout)
    command = {"execution_id": execution_id, "pid": pid, "host": os.uname().nodename, **asdict(sync)}
    _write(execution.folder / "command.json", json.dumps(command, indent=2))
    return execution


def _forget_old(executions: Path) -> None:
    """Every run of a schedule is an execution of its own, so they would become ever more."""
    for ended in executions.glob("*/exit"):
        with suppress(FileNotFoundError):  # another one forgets it at this moment
            if (ended.parent / "command.json").exists() and _age(ended) > KEPT_SECONDS:
                shutil.rmtree(ended.parent, ignore_errors=True)


def _age(path: Path) -> float:
    return time.time() - path.stat().st_mtime


def folder_name(execution_id: str) -> str:
    """A name that says which execution it is, and of no other one."""
    readable = re.sub(r"[^\w.-]", "_", execution_id)[:_LONGEST_NAME]
    return f"{readable}-{hashlib.sha256(execution_id.encode()).hexdigest()[:8]}"


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    beside = path.with_name(f".{path.name}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def _launch(folder: Path, words: Sequence[str]) -> None:
    """Leave behind a process that belongs to nobody, and say its number."""
    pid = os.fork()
    if pid:
        print(pid)
        return
    os.setsid()
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    _keep(folder, words)


def _keep(folder: Path, words: Sequence[str]) -> None:
    """Run the command, give signs of life, and write down how it ended."""
    try:
        process = subprocess.Popen(words)
    except OSError as error:
        print(f"{words[0]} cannot be started: {error.strerror}", flush=True)
        _write(folder / "exit", str(WRONGLY_CONFIGURED))
        return

    def forward(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    while True:
        (folder / "alive").touch()
        try:
            code = process.wait(BEAT_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        _write(folder / "exit", str(code))
        return


if __name__ == "__main__":
    _launch(Path(sys.argv[1]), sys.argv[2:])

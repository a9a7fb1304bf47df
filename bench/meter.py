"""Runs one command and tells what it cost: `python -m bench.meter REPORT LOG SERVER_PID COMMAND…`.

A process of its own, so that it can adopt whatever the command leaves behind (Spark's JVM outlives the
Python that started it) and count that too. A command may cut its run into phases by printing `@begin NAME`
and `@end NAME`; without them the phase `command` is the whole run. Everything else it says goes to the log.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from bench.processes import Process, cpu_seconds, forgets_children, memory_bytes, tree

WHOLE = "command"
SAMPLE_SECONDS = 0.1
REST = 100
"""To weigh memory takes a core that what is measured may need: after that, rest so many times as long."""
ORPHAN_SECONDS = 30.0
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Measured:
    """The cost of one phase."""

    seconds: float
    client_cpu: float
    server_cpu: float
    peak_bytes: int


@dataclass(frozen=True)
class _Reading:
    at: float
    client: float
    server: float


class _Watch(threading.Thread):
    """Looks at everything below this process, again and again."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._peaks = {WHOLE: 0}
        self._unburied: dict[tuple[int, int], float] = {}
        self._forgotten = 0.0
        self._rests_until = 0.0
        self._lock = threading.Lock()
        self._over = threading.Event()

    def begin(self, phase: str) -> None:
        with self._lock:
            self._peaks[phase] = 0

    def end(self, phase: str) -> int:
        with self._lock:
            self._rests_until = 0.0  # even the shortest phase is weighed once
        self.look()
        with self._lock:
            return self._peaks.pop(phase)

    def run(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            self.look()

    def stop(self) -> None:
        self._over.set()
        self.join()

    def look(self) -> float:
        """Note memory, and return the CPU that everything below has used, dead or alive."""
        with self._lock:
            own, *below = tree(os.getpid())
            if time.monotonic() >= self._rests_until:
                self._weigh(below)
            self._remember(below)
            mine = os.times()
            return cpu_seconds([own, *below]) - mine.user - mine.system + self._forgotten

    def _weigh(self, below: list[Process]) -> None:
        began = time.monotonic()
        now = memory_bytes(below)
        self._peaks = {phase: max(peak, now) for phase, peak in self._peaks.items()}
        ended = time.monotonic()
        self._rests_until = ended + REST * (ended - began)

    def _remember(self, below: list[Process]) -> None:
        """Keep the account of those whose parent will not: what they had used when last seen."""
        forgetful = {pid for pid in {process.parent for process in below} if forgets_children(pid)}
        alive = {(process.pid, process.began) for process in below}
        self._forgotten += sum(cpu for who, cpu in self._unburied.items() if who not in alive)
        self._unburied = {
            (process.pid, process.began): process.cpu for process in below if process.parent in forgetful
        }


class _Meter:
    def __init__(self, server_pid: int) -> None:
        self._server = server_pid
        self._watch = _Watch()
        self._began: dict[str, _Reading] = {}
        self.phases: dict[str, Measured] = {}

    def run(self, command: list[str], log: IO[str]) -> int:
        self._watch.start()
        self._began[WHOLE] = self._read()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True
        )
        assert process.stdout is not None
        # What the command leaves behind may keep the pipe open: listening must not hold up the clock.
        listener = threading.Thread(target=self._listen, args=(process.stdout, log))
        listener.start()
        code = process.wait()
        ended = time.monotonic()
        _bury_orphans()
        listener.join()
        self._end(WHOLE, ended)
        self._watch.stop()
        return code

    def _listen(self, output: IO[str], log: IO[str]) -> None:
        for line in output:
            self._heard(line)
            log.write(line)
            log.flush()

    def _heard(self, line: str) -> None:
        word, _, phase = line.strip().partition(" ")
        if word == "@begin":
            self._watch.begin(phase)
            self._began[phase] = self._read()
        elif word == "@end":
            self._end(phase, time.monotonic())

    def _end(self, phase: str, at: float) -> None:
        began, now = self._began[phase], self._read()
        self.phases[phase] = Measured(
            at - began.at, now.client - began.client, now.server - began.server, self._watch.end(phase)
        )

    def _read(self) -> _Reading:
        return _Reading(time.monotonic(), self._watch.look(), cpu_seconds(tree(self._server)))


def _adopt_orphans() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _bury_orphans() -> None:
    """Wait for what the command left running: its CPU counts, its time no longer does."""
    deadline = time.monotonic() + ORPHAN_SECONDS
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid:
            continue
        if time.monotonic() > deadline:
            for orphan in tree(os.getpid())[1:]:
                os.kill(orphan.pid, signal.SIGKILL)
        time.sleep(0.02)


def main(report: str, log: str, server_pid: str, *command: str) -> int:
    _adopt_orphans()
    meter = _Meter(int(server_pid))
    with Path(log).open("a") as file:
        code = meter.run(list(command), file)
    Path(report).write_text(json.dumps({name: asdict(cost) for name, cost in meter.phases.items()}))
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

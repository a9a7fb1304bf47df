"""What a tree of processes costs, as the kernel tells it. Linux only, standard library only."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")

# Places in /proc/PID/stat, counted after the name in brackets, which may hold blanks itself.
_PARENT = 1
_TIMES = (11, 12, 13, 14)
_BEGAN = 19


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    began: int
    """With the pid, this tells a process from a later one of the same number."""
    cpu: float
    """Seconds that it has used, and the children that it has buried."""


def tree(root: int) -> list[Process]:
    """A process and all of its descendants that are alive, the process itself first."""
    alive = [process for entry in os.listdir(_PROC) if entry.isdigit() for process in _read(int(entry))]  # noqa: PTH208
    children: dict[int, list[Process]] = {}
    for process in alive:
        children.setdefault(process.parent, []).append(process)
    found = [process for process in alive if process.pid == root]
    for process in found:  # which grows on the way
        found += children.get(process.pid, [])
    return found


def cpu_seconds(processes: Iterable[Process]) -> float:
    return sum(process.cpu for process in processes)


def memory_bytes(processes: Iterable[Process]) -> int:
    """Proportional set size: pages that several processes share count once."""
    return sum(_proportional(process.pid) for process in processes)


def forgets_children(pid: int) -> bool:
    """Whether it ignores the end of its children: the kernel then adds their CPU to nobody's account.

    The daemon that starts Spark's Python workers does, and in them all the work is done.
    """
    for line in _lines(pid, "status"):
        if line.startswith("SigIgn:"):
            return bool(int(line.split()[1], 16) >> (signal.SIGCHLD - 1) & 1)
    return False


def _read(pid: int) -> list[Process]:
    for line in _lines(pid, "stat"):
        fields = line.rpartition(") ")[2].split()
        ticks = sum(int(fields[place]) for place in _TIMES)
        return [Process(pid, int(fields[_PARENT]), int(fields[_BEGAN]), ticks / _TICK)]
    return []


def _proportional(pid: int) -> int:
    lines = _lines(pid, "smaps_rollup")
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def _lines(pid: int, name: str) -> list[str]:
    try:
        return (_PROC / str(pid) / name).read_text().splitlines()
    except OSError:  # it has ended in the meantime
        return []

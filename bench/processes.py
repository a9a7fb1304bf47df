"""What a tree of processes costs, as the kernel tells it. Linux only, standard library only."""

from __future__ import annotations

import os
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


def tree(root: int) -> list[int]:
    """A process and all of its descendants that are alive."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir(_PROC):  # noqa: PTH208 - called many times a second
        if entry.isdigit() and (fields := _stat(int(entry))):
            children.setdefault(int(fields[_PARENT]), []).append(int(entry))
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found


def cpu_seconds(root: int) -> float:
    """CPU that a process, its living descendants and those they have buried have used so far."""
    ticks = 0
    for pid in tree(root):
        if fields := _stat(pid):
            ticks += sum(int(fields[field]) for field in _TIMES)
    return ticks / _TICK


def memory_bytes(pids: list[int]) -> int:
    """Proportional set size: pages that several processes share count once."""
    return sum(_proportional(pid) for pid in pids)


# Places in /proc/PID/stat, counted after the name in brackets, which may hold blanks itself.
_PARENT = 1
_TIMES = (11, 12, 13, 14)


def _stat(pid: int) -> list[str]:
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:  # it has ended in the meantime
        return []
    return text.rpartition(") ")[2].split()


def _proportional(pid: int) -> int:
    try:
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)

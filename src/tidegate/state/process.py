"""This process, named so exactly that another one on the same machine can tell whether it still lives."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
from pathlib import Path

from tidegate.core.leases import Holder

_UNKNOWN = ""
_PROC = Path("/proc")
_STATE, _THREADS, _START = 0, 17, 19
"""Fields of /proc/PID/stat, counted from the one behind the command's name."""


def this_process(command: str) -> Holder:
    return Holder(
        host=socket.gethostname(),
        boot_id=_boot_id(),
        pid_namespace=_pid_namespace(),
        pid=os.getpid(),
        process_start=_start(os.getpid()),
        command=command,
    )


def known_dead(holder: Holder, me: Holder) -> bool:
    """Whether `holder` is gone for certain, seen from `me`, which must be this very process.

    That can be known only where both see the same processes: same host, same boot, same PID namespace.
    After a restart of the machine nothing is certain: host names and machine ids are copied with the
    images that machines are made from, and a restart takes about as long as a lease lasts.
    """
    if not _same_view(holder, me) or me != this_process(me.command):
        return False
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it is there, and belongs to somebody else
    if _is_zombie(holder.pid):
        return True
    start = _start(holder.pid)
    return _UNKNOWN not in (start, holder.process_start) and start != holder.process_start


def _same_view(holder: Holder, me: Holder) -> bool:
    theirs = (holder.host, holder.boot_id, holder.pid_namespace)
    mine = (me.host, me.boot_id, me.pid_namespace)
    return theirs == mine and _UNKNOWN not in theirs and holder.pid > 0


def _boot_id() -> str:
    if platform.system() == "Darwin":
        return _answer("sysctl", "-n", "kern.bootsessionuuid")
    return _text(_PROC / "sys/kernel/random/boot_id")


def _pid_namespace() -> str:
    if platform.system() == "Darwin":
        return "the only one"
    try:
        return str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return _UNKNOWN


def _start(pid: int) -> str:
    """When the process started, in the system's own words; unknown where they cannot be had."""
    if platform.system() == "Darwin":
        return _answer("ps", "-o", "lstart=", "-p", str(pid))
    fields = _stat(pid)
    return fields[_START] if len(fields) > _START else _UNKNOWN


def _is_zombie(pid: int) -> bool:
    """Killed, all its threads gone, and only waiting for a parent that never asks: common in containers."""
    fields = _stat(pid)
    return len(fields) > _START and fields[_STATE] == "Z" and int(fields[_THREADS]) <= 1


def _stat(pid: int) -> list[str]:
    # The command's name may hold spaces and brackets; the fields begin behind its last bracket.
    return _text(_PROC / str(pid) / "stat").rpartition(")")[2].split()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return _UNKNOWN


def _answer(*command: str) -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return _UNKNOWN
    return done.stdout.strip() if done.returncode == 0 else _UNKNOWN

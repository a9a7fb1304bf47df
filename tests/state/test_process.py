"""Who holds a lease, and whether it is known to be dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidegate.core.leases import Holder
from tidegate.state.process import known_dead, this_process
from tidegate.testing.stores import holder_that_died

ME = this_process("a test")


def other_process(pid: int) -> Holder:
    """The process with this PID, as it would name itself."""
    start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return replace(ME, pid=pid, process_start=start, command="other")


def test_a_process_names_itself_the_same_every_time() -> None:
    assert this_process("a test") == ME
    assert ME.pid == os.getpid()
    assert all((ME.host, ME.boot_id, ME.pid_namespace, ME.process_start))


def test_the_name_of_a_holder_says_command_process_and_host() -> None:
    assert str(ME) == f"a test (process {os.getpid()} on {ME.host})"


def test_a_living_process_is_not_dead() -> None:
    assert not known_dead(ME, ME)
    assert not known_dead(other_process(os.getppid()), ME)


def test_a_process_that_ended_is_dead() -> None:
    assert known_dead(holder_that_died(), ME)


def test_a_process_that_took_over_the_pid_does_not_make_its_predecessor_live() -> None:
    assert known_dead(replace(ME, process_start="1"), ME)


@pytest.mark.parametrize(
    "difference", [{"host": "other"}, {"boot_id": "other"}, {"pid_namespace": "pid:[1]"}, {"pid": -1}]
)
def test_nothing_is_known_of_processes_that_cannot_be_seen_from_here(difference: dict[str, Any]) -> None:
    dead = holder_that_died()
    assert not known_dead(replace(dead, **difference), ME)


@pytest.mark.parametrize("unknown", ["host", "boot_id", "pid_namespace"])
def test_nothing_is_known_where_the_system_tells_nothing(unknown: str) -> None:
    dead = holder_that_died()
    nothing: dict[str, Any] = {unknown: ""}
    assert not known_dead(replace(dead, **nothing), replace(ME, **nothing))


def test_nothing_is_known_on_behalf_of_another_process() -> None:
    assert not known_dead(holder_that_died(), other_process(os.getppid()))


def test_a_process_whose_start_nobody_noted_counts_as_living_while_its_pid_is_taken() -> None:
    assert not known_dead(replace(ME, process_start=""), ME)


def test_a_process_with_an_odd_name_is_recognised(tmp_path: Path) -> None:
    program = tmp_path / "a) R (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "60"]) as process:
        holder = other_process(process.pid)
        assert not known_dead(holder, ME)
        process.kill()
        process.wait()
        assert known_dead(holder, ME)


def test_a_killed_process_is_dead_even_if_its_parent_never_asks() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        holder = other_process(process.pid)
        assert not known_dead(holder, ME)
        process.kill()
        wait_until(lambda: known_dead(holder, ME))
        assert process.poll() == -signal.SIGKILL


def test_a_stopped_process_is_not_dead() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.05)
        assert not known_dead(other_process(process.pid), ME)
        process.kill()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)

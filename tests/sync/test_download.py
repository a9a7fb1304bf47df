"""The command that fills a temporary table: waited for, stopped in time, and never left behind unnoticed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from tidegate.core.errors import ConfigError, DownloadFailed, Interrupted, LeaseHeld
from tidegate.sync.download import Download


class Underway(Download):
    """Its time begins to run when the command has told in a file which child it has."""

    def _started(self, arguments: Sequence[str], descriptor: int) -> subprocess.Popen[bytes]:
        process = super()._started(arguments, descriptor)
        child, end = self.directory / "child", time.monotonic() + 120
        while not child.exists() or not child.read_text().endswith("\n"):
            assert time.monotonic() < end
            time.sleep(0.02)
        return process


def download(
    folder: Path, script: str, timeout: float = 600, patience: float = 120, kind: type[Download] = Download
) -> Download:
    return kind(
        ("sh", "-c", script, "download"),
        folder,
        folder / "lock",
        timedelta(seconds=timeout),
        {"MODE": "hourly"},
        grace=timedelta(seconds=0.5),
        patience=timedelta(seconds=patience),
    )


def test_it_runs_in_its_folder_with_its_environment_and_its_arguments(tmp_path: Path) -> None:
    script = 'echo "$PWD $MODE $HOME $*" > said'
    download(tmp_path, script).run(["-d", "", "--hours", "-1"])
    said = (tmp_path / "said").read_text()
    assert said == f"{tmp_path.resolve()} hourly {os.environ['HOME']} -d  --hours -1\n"


def test_no_shell_reads_the_arguments(tmp_path: Path) -> None:
    download(tmp_path, 'printf "%s" "$1" > said').run(["$(touch broken) ; x"])
    assert (tmp_path / "said").read_text() == "$(touch broken) ; x"
    assert not (tmp_path / "broken").exists()


@pytest.mark.parametrize(("script", "words"), [("exit 3", "exit code 3"), ("kill -9 $$", "signal SIGKILL")])
def test_a_command_that_fails_says_how(tmp_path: Path, script: str, words: str) -> None:
    with pytest.raises(DownloadFailed, match=words):
        download(tmp_path, script).run()


def test_a_command_that_is_not_there_is_a_mistake_of_the_configuration(tmp_path: Path) -> None:
    missing = Download(("./no-such-tool",), tmp_path, tmp_path / "lock", timedelta(minutes=1))
    with pytest.raises(ConfigError, match="No such file"):
        missing.run()


def test_a_command_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    script = "sleep 600 & echo $! > child; trap '' TERM; wait; sleep 600"
    with pytest.raises(Interrupted, match="did not end within"):
        download(tmp_path, script, timeout=0.5, kind=Underway).run()
    assert _gone(int((tmp_path / "child").read_text()))
    download(tmp_path, "true").run()  # nothing holds the lock any more


def test_what_a_command_leaves_running_is_ended(tmp_path: Path) -> None:
    download(tmp_path, "sleep 600 & echo $! > child").run()
    assert _gone(int((tmp_path / "child").read_text()))


def test_processes_that_escape_are_noticed_and_keep_the_next_download_away(tmp_path: Path) -> None:
    script = "setsid sh -c 'echo $$ > child; exec sleep 600' & sleep 600"
    escaping = download(tmp_path, script, timeout=0.5, kind=Underway)
    with pytest.raises(Interrupted):
        escaping.run()
    child = int((tmp_path / "child").read_text())
    try:
        with pytest.raises(LeaseHeld, match="still at work"):
            download(tmp_path, "true", patience=0.1).run()
    finally:
        os.kill(child, signal.SIGKILL)
    assert _gone(child)
    download(tmp_path, "true").run()


def test_a_command_that_ends_before_its_work_does_has_failed(tmp_path: Path) -> None:
    script = "setsid sh -c 'echo $$ > child; exec sleep 600' & while ! [ -s child ]; do sleep 0.05; done"
    with pytest.raises(DownloadFailed, match="left processes behind"):
        download(tmp_path, script, patience=0.5).run()
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


def _gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has buried yet counts."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False

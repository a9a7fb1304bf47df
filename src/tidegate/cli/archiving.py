"""Cycles of the archiver as the command line runs them: watched, measured, and ended by signals."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

from tidegate.archive.config import ArchiveConfig
from tidegate.archive.contract import Share, Tools
from tidegate.archive.cycle import Cycle
from tidegate.archive.library import open_tools
from tidegate.archive.metrics import Figures, serving, write_textfile
from tidegate.archive.records import PartReceipt
from tidegate.archive.results import CycleResult
from tidegate.archive.statistics import pending
from tidegate.archive.streams import files_archived
from tidegate.cli.choosing import print_json
from tidegate.cli.failures import say
from tidegate.cli.invocation import Invocation
from tidegate.cli.signals import Stop, stopping
from tidegate.cli.watching import AnnouncedSession
from tidegate.core.errors import TidegateError
from tidegate.core.windows import Window
from tidegate.observe.figures import counted, size, span

_SHORTEST_PAUSE, _LONGEST_PAUSE = 5.0, 900.0


@dataclass
class Rounds:
    """Cycles, one or many."""

    invocation: Invocation
    config: ArchiveConfig
    share: Share
    session: AnnouncedSession
    textfile: Path | None
    late: bool
    as_json: bool
    figures: Figures = field(default_factory=Figures)
    _serving: bool = False

    def once(self) -> int:
        with stopping(gently=False) as stop:
            self._cycle(stop)
        return 0

    def for_ever(self, interval: float, port: int) -> int:
        """Until a signal. A cycle that fails is tried again, later each time, but at least every interval."""
        terminal = self.invocation.terminal
        failures = 0
        host = self.config.metrics.host
        self._serving = True
        with stopping(gently=True) as stop, serving(self.figures, host, port) as address:
            terminal.say(f"metrics at {address}/metrics, health at {address}/healthz")
            while not stop.wanted:
                try:
                    self._cycle(stop)
                    failures = 0
                except TidegateError as error:
                    say(self.invocation, error)
                    failures += 1
                except KeyboardInterrupt:
                    if not stop.wanted:
                        raise
                    break
                pause = _pause(interval, failures)
                terminal.say(f"next cycle in {pause:g} s")
                stop.wait(pause)
            terminal.say("stopped; what is packed stays packed, and the next start goes on from here")
        return 0

    def _cycle(self, stop: Stop) -> None:
        watching = Watched(self.invocation, stop)
        self.session.before = [lambda: watching.note("starting Spark")]
        self.session.after = [stop.arm]
        name = "tidegate archive run"
        with open_tools(self.config, command=name, session=self.session) as tools:
            try:
                result = Cycle(tools, watching, self.share, self.late).run()
            except TidegateError as error:
                self.figures.set(failing=error.message, failures_total=self.figures.failures_total + 1)
                self._measure(tools)
                raise
            self.figures.set(
                failing=None, last_success=tools.clock(), duration_seconds=result.duration_seconds
            )
            self._measure(tools)
        self._tell(result)

    def _measure(self, tools: Tools) -> None:
        """What can be known of the archive now; a database that cannot be reached is known from elsewhere."""
        if self.textfile is None and not self._serving:
            return  # nobody would read it, and the database would count its rows
        try:
            waiting, lag = pending(tools)
            self.figures.set(
                files_pending=waiting, lag_seconds=lag, files_total=files_archived(tools.store, tools.config)
            )
            self._write()
        except TidegateError as error:
            self.invocation.terminal.warn(f"metrics are out of date: {error.message}")

    def _write(self) -> None:
        if self.textfile is not None:
            write_textfile(self.textfile, self.figures)

    def _tell(self, result: CycleResult) -> None:
        if self.as_json:
            print_json(result.to_json(), compact=True)
            return
        for line in _in_words(result):
            self.invocation.terminal.say(line)


def _pause(interval: float, failures: int) -> float:
    if not failures:
        return interval
    return min(interval, _LONGEST_PAUSE, _SHORTEST_PAUSE * 2.0 ** min(failures - 1, 10))


def _in_words(result: CycleResult) -> list[str]:
    if not result.files and not result.skipped and not result.already:
        return [f"nothing to archive up to {result.window.high}"]
    packed = f"{counted(result.files, 'file')}, {size(result.bytes)}, into {counted(result.shards, 'shard')}"
    lines = [f"archived {packed} of {size(result.stored)} in {span(result.duration_seconds)}"]
    if result.already:
        lines.append(f"{counted(result.already, 'file')} had been archived before")
    if result.skipped:
        lines.append(f"{counted(result.skipped, 'file')} left out, as the configuration says:")
        lines += [f"  {problem.uid}: {problem.message}" for problem in result.problems[:20]]
    if result.moved:
        lines.append(f"archived until {result.window.high}")
    return lines


class Watched:
    """The terminal watches, and signals stop."""

    def __init__(self, invocation: Invocation, stop: Stop) -> None:
        self._terminal = invocation.terminal
        self._stop = stop
        self._log = logging.getLogger("tidegate.archive")
        self._files = self._done = 0

    def check(self) -> None:
        self._stop.check()

    def wait(self, seconds: float) -> bool:
        return self._stop.wait(seconds)

    def note(self, text: str) -> None:
        self._log.info("%s", text)
        self._terminal.say(text)

    def planned(self, window: Window, files: int, parts: int) -> None:
        self._files, self._done = files, 0
        self.note(f"{counted(files, 'file')} in the window {window}, {counted(parts, 'part')}")

    def packed(self, receipt: PartReceipt) -> None:
        self._done += receipt.listed
        self._log.info(
            "part %s packed: %s files, %s shards", receipt.part, receipt.packed, len(receipt.shards)
        )

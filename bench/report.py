"""What people read at the end, and the goals it is held against."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime

from bench.contract import COLD, FIRST, PHASES, SECOND
from bench.results import Findings, Idle, Ratio, Result, median, ratio

US = "tidegate"
SPARK = "spark-jdbc"
TRUSTING = "trusting"
MEGA = 1e6
GOAL_RATIO = 3.0
GOAL_EXACT = 1 / 1.1
GOAL_BYTES = 1.5e9
GOAL_IDLE_SECONDS = 1.5

COLUMNS = ("rows/s", "seconds", "client CPU s", "server CPU s", "peak MB", "files MB")


def text(findings: Findings) -> str:
    return "\n".join(_lines(findings))


def _lines(findings: Findings) -> Iterator[str]:
    yield from _heading(findings)
    for server in dict.fromkeys(result.server for result in findings.results):
        yield from _table(findings, server)
        yield from _ratios(findings, server)
    yield from _memory(findings)
    for found in findings.idle:
        yield f"\n{found.server}: a sync that finds nothing new in {found.tables} tables: {_idle(found)}"
    yield from _goals(findings)
    for failure in findings.failures:
        yield f"\nFAILED {failure.server}, {failure.tool}: {failure.message}"


def _heading(findings: Findings) -> Iterator[str]:
    rounds = max((result.round for result in findings.results), default=0)
    loads = [result.load for result in findings.results] or [0.0]
    yield f"\n{findings.rows:,} rows of 12 columns → Parquet, {rounds} rounds, medians"
    yield f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {machine()}, load {min(loads):.1f} to {max(loads):.1f}"
    yield "Machines are noisy: compare figures of this run with each other only."


def machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    answer = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    java = answer.stderr.partition('"')[2].partition('"')[0] or "?"
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}, Java {java}"


def _table(findings: Findings, server: str) -> Iterator[str]:
    yield f"\n{server}"
    yield f"  {'':<12}{'':<14}" + "".join(f"{column:>14}" for column in COLUMNS)
    for phase in PHASES:
        for tool in dict.fromkeys(result.tool for result in findings.results):
            if found := findings.of(server, tool, phase):
                yield f"  {tool:<12}{phase:<14}" + "".join(f"{figure:>14}" for figure in _figures(found))


def _figures(found: list[Result]) -> list[str]:
    return [
        f"{median(found, lambda result: result.rows_per_second):,.0f}",
        f"{median(found, lambda result: result.cost.seconds):.1f}",
        f"{median(found, lambda result: result.cost.client_cpu):.1f}",
        f"{median(found, lambda result: result.cost.server_cpu):.1f}",
        f"{max(result.cost.peak_bytes for result in found) / MEGA:,.0f}",
        f"{found[0].files_bytes / MEGA:,.0f}",
    ]


def _ratios(findings: Findings, server: str) -> Iterator[str]:
    yield ""
    for peer in dict.fromkeys(result.tool for result in findings.results if result.tool != US):
        for phase, words in ((COLD, "cold"), (FIRST, "once the session is up"), (SECOND, "second table")):
            if found := ratio(findings, server, phase, US, peer):
                yield f"  Tidegate / {peer}: {found} {words}"


def _memory(findings: Findings) -> Iterator[str]:
    ours = [result for result in (*findings.results, *findings.large) if result.tool == US]
    if ours:
        yield "\nTidegate's peak memory, all processes, JVM included"
    for server, rows in dict.fromkeys((result.server, result.rows) for result in ours):
        peak = _peak([result for result in ours if (result.server, result.rows) == (server, rows)])
        yield f"  {server}, {rows:,} rows: {peak / MEGA:,.0f} MB"


def _peak(found: list[Result]) -> int:
    return max(result.cost.peak_bytes for result in found)


def _idle(found: Idle) -> str:
    seconds = [cost.seconds for cost in found.costs]
    cpu = statistics.median(cost.client_cpu for cost in found.costs)
    return f"{found.seconds:.2f} s ({min(seconds):.2f} to {max(seconds):.2f}), {cpu:.2f} s of CPU"


def _goals(findings: Findings) -> Iterator[str]:
    yield "\nGoals"
    for server in dict.fromkeys(result.server for result in findings.results):
        for phase, words in ((FIRST, "once the session is up"), (SECOND, "for a table after that")):
            if found := ratio(findings, server, phase, US, SPARK):
                yield goal(
                    f"{server}: at least {GOAL_RATIO:g} × Spark JDBC {words}: {found}",
                    reached=found.median >= GOAL_RATIO,
                )
    for server in dict.fromkeys(result.server for result in findings.results):
        exact = [ratio(findings, server, phase, US, TRUSTING) for phase in (FIRST, SECOND)]
        if known := [found for found in exact if found]:
            yield goal(
                f"{server}: exact within 10% of the quickest reader that is not: {_worst(known)} its speed",
                reached=_worst(known).median >= GOAL_EXACT,
            )
    ours = [result for result in (*findings.results, *findings.large) if result.tool == US]
    if ours:
        largest = max(result.rows for result in ours)
        yield goal(
            f"peak memory below {GOAL_BYTES / MEGA:,.0f} MB up to {largest:,} rows: "
            f"{_peak(ours) / MEGA:,.0f} MB",
            reached=_peak(ours) < GOAL_BYTES,
        )
    for idle in findings.idle:
        yield goal(
            f"nothing new in {idle.tables} tables in under {GOAL_IDLE_SECONDS:g} s: {idle.seconds:.2f} s",
            reached=idle.seconds < GOAL_IDLE_SECONDS,
        )


def _worst(found: list[Ratio]) -> Ratio:
    return min(found, key=lambda one: one.median)


def goal(words: str, *, reached: bool) -> str:
    return f"  {'reached' if reached else 'MISSED '}  {words}"

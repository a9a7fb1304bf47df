"""What a benchmark found, as values."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from bench.meter import Measured


@dataclass(frozen=True)
class Result:
    """One complete copy of a table."""

    server: str
    tool: str
    phase: str
    round: int
    rows: int
    cost: Measured
    files_bytes: int
    load: float
    """Of the machine in the minute before: what else was going on."""

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.cost.seconds


@dataclass(frozen=True)
class Failure:
    server: str
    tool: str
    message: str


@dataclass(frozen=True)
class Idle:
    """Syncs that found nothing new."""

    server: str
    tables: int
    costs: list[Measured]

    @property
    def seconds(self) -> float:
        return statistics.median(cost.seconds for cost in self.costs)


@dataclass
class Findings:
    rows: int
    results: list[Result] = field(default_factory=list)
    large: list[Result] = field(default_factory=list)
    idle: list[Idle] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def of(self, server: str, tool: str, phase: str) -> list[Result]:
        wanted = (server, tool, phase)
        return [found for found in self.results if (found.server, found.tool, found.phase) == wanted]


@dataclass(frozen=True)
class Ratio:
    """How many times faster one tool was than another, round by round."""

    values: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        spread = f" ({min(self.values):.2f} to {max(self.values):.2f})" if len(self.values) > 1 else ""
        return f"{self.median:.2f} ×{spread}"


def ratio(findings: Findings, server: str, phase: str, tool: str, peer: str) -> Ratio | None:
    """Rounds are compared with themselves only: what disturbs the machine disturbs both."""
    ours = {found.round: found.rows_per_second for found in findings.of(server, tool, phase)}
    theirs = {found.round: found.rows_per_second for found in findings.of(server, peer, phase)}
    both = [ours[number] / theirs[number] for number in sorted(ours.keys() & theirs.keys())]
    return Ratio(both) if both else None


def median(found: Iterable[Result], figure: Callable[[Result], float]) -> float:
    return statistics.median(figure(result) for result in found)

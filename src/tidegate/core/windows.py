"""Windows and chunks: half-open ranges of positions `(low, high]`.

Which end of a window belongs to it is said here, and for databases in `predicates`; nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tidegate.core.positions import Position


@dataclass(frozen=True, slots=True)
class Window:
    """Everything after `low`, up to and including `high`. A missing end is open."""

    low: Position | None
    high: Position | None

    def __post_init__(self) -> None:
        if self.low is None or self.high is None:
            return
        if self.high.precedes(self.low):
            raise ValueError(f"a window cannot end at {self.high}, before it begins at {self.low}")

    @property
    def empty(self) -> bool:
        return self.low is not None and self.low == self.high

    def __contains__(self, position: Position) -> bool:
        after_low = self.low is None or self.low < position
        return after_low and (self.high is None or position <= self.high)

    def __str__(self) -> str:
        return f"({self.low or 'beginning'}, {self.high or 'end'}]"

    def to_json(self) -> dict[str, Any]:
        return {
            "low": self.low.to_json() if self.low else None,
            "high": self.high.to_json() if self.high else None,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Window:
        low, high = data["low"], data["high"]
        return cls(
            None if low is None else Position.from_json(low),
            None if high is None else Position.from_json(high),
        )


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a window, cut by row count. Chunks are numbered from 1 in the order of their positions."""

    number: int
    window: Window


def cut(window: Window, cuts: Sequence[Position]) -> tuple[Chunk, ...]:
    """Chunks that tile `window`; `cuts` are the inner boundaries in the database's order."""
    ends = [window.low, *cuts, window.high]
    return tuple(
        Chunk(number, Window(low, high)) for number, (low, high) in enumerate(pairwise(ends), start=1)
    )


def tiles(window: Window, parts: Iterable[Window]) -> bool:
    """Whether the parts, in order, cover the window with no gap and no overlap.

    Neighbours share a boundary *value*, so equality decides and no collation has to be known.
    """
    edge = window.low
    count = 0
    for part in parts:
        if part.low != edge or (count and part.low is None):
            return False
        edge = part.high
        count += 1
    return count > 0 and edge == window.high


def within(column: Any, low: Any, high: Any) -> Any:
    """The condition that a column, in any library that overloads the operators, lies in a window's range."""
    condition = column <= high
    return condition if low is None else (column > low) & condition


def subtract(window: Window, covered: Iterable[Window]) -> list[Window]:
    """The parts of an ordered window that no covered window reaches, in order."""
    rest = [window]
    for hole in covered:
        rest = [piece for part in rest for piece in _without(part, hole)]
    return rest


def merge(windows: Iterable[Window]) -> list[Window]:
    """The same ranges, in order, with overlapping and touching ones joined.

    Where only the database could compare two of them, they are left as they are.
    """
    found = list(windows)
    try:
        return _joined(found)
    except TypeError:
        return list(dict.fromkeys(found))


def _joined(windows: list[Window]) -> list[Window]:
    joined: list[Window] = []
    for window in sorted(windows, key=lambda w: _Edge(w.low, end=False)):
        last = joined[-1] if joined else None
        if last is None or _Edge(last.high, end=True) < _Edge(window.low, end=False):
            joined.append(window)
        elif _Edge(last.high, end=True) < _Edge(window.high, end=True):
            joined[-1] = Window(last.low, window.high)
    return joined


def _without(part: Window, hole: Window) -> list[Window]:
    if _Edge(hole.high, end=True) <= _Edge(part.low, end=False) or _Edge(part.high, end=True) <= _Edge(
        hole.low, end=False
    ):
        return [part]
    pieces = []
    if _Edge(part.low, end=False) < _Edge(hole.low, end=False):
        pieces.append(Window(part.low, hole.low))
    if _Edge(hole.high, end=True) < _Edge(part.high, end=True):
        pieces.append(Window(hole.high, part.high))
    return pieces


@dataclass(frozen=True)
class _Edge:
    """An end of a window on one line: an open low is before everything, an open high after everything."""

    position: Position | None
    end: bool

    def _rank(self) -> int:
        if self.position is not None:
            return 0
        return 1 if self.end else -1

    def __lt__(self, other: _Edge) -> bool:
        if self.position is not None and other.position is not None:
            return self.position < other.position
        return self._rank() < other._rank()

    def __le__(self, other: _Edge) -> bool:
        return not other < self

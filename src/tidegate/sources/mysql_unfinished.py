"""Rows that are written and not committed yet, found by reading with and without them.

MySQL tells when a transaction was first seen by InnoDB, not when its first statement was sent. A statement
that waited for a table to be altered or unlocked carries a `NOW()` from before, and once it has run, nothing
in the server's lists says so. But its rows can be looked at: a session that reads uncommitted data sees
them, an ordinary one does not. Where the two agree, nothing is hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidegate.sources.mysql_session import Row

Ask = Callable[[str], list[Row]]
Groups = dict[str, tuple[int, int]]
"""By a prefix of the timestamp: how many rows, and a checksum of which."""

_HOUR, _SECOND, _MICROSECOND = 13, 19, 26
"""How much of `2026-01-31 23:59:59.123456` tells the hour, the second, everything."""
_MOST_GROUPS = 50
"""How many groups are looked into before the rest is taken to hide something."""


@dataclass(frozen=True)
class Rows:
    """The part of a table in question: a condition on its rows, in one table's own words."""

    relation: str
    condition: str
    timestamp: str
    identity: str
    """What tells rows apart: an expression over the key."""


@dataclass(frozen=True)
class Unfinished:
    dirty: Ask
    committed: Ask

    def earliest(self, rows: Rows) -> str | None:
        """Up to a microsecond, or a day: the smallest timestamp that an uncommitted row may have."""
        return self._first_hidden(rows, (_HOUR, _SECOND, _MICROSECOND), "")

    def _first_hidden(self, rows: Rows, sizes: tuple[int, ...], within: str) -> str | None:
        size, *deeper = sizes
        differing = self._differing(rows, size, within)
        for looked_into, (prefix, gone) in enumerate(differing):
            if gone:
                continue
            if not deeper or looked_into == _MOST_GROUPS or len(prefix) < size:
                return prefix
            found = self._first_hidden(rows, tuple(deeper), prefix)
            if found is not None:
                return found
        return None

    def _differing(self, rows: Rows, size: int, within: str) -> list[tuple[str, bool]]:
        """The groups that the two sessions see differently, and whether only the committed one has any.

        The uncommitted look comes first: what it saw and what then commits is seen by the second one.
        """
        sql = _grouped(rows, size, within)
        dirty, committed = _groups(self.dirty(sql)), _groups(self.committed(sql))
        return [
            (prefix, prefix not in dirty)
            for prefix in sorted(dirty.keys() | committed.keys())
            if dirty.get(prefix) != committed.get(prefix)
        ]


def _grouped(rows: Rows, size: int, within: str) -> str:
    narrowed = f"({rows.condition})"
    if within:
        narrowed += f" AND {rows.timestamp} BETWEEN {_edge(within, '0')} AND {_edge(within, '9')}"
    prefix = f"LEFT({rows.timestamp}, {size})"
    return (
        f"SELECT {prefix}, COUNT(*), BIT_XOR(CRC32(CONCAT_WS(',', {rows.timestamp}, {rows.identity}))) "
        f"FROM {rows.relation} WHERE {narrowed} GROUP BY 1"
    )


def whole_moment(prefix: str) -> str:
    """The first moment that begins with the prefix."""
    return f"{prefix}:00:00" if len(prefix) == _HOUR else prefix


def _edge(prefix: str, digit: str) -> str:
    if len(prefix) == _HOUR:
        prefix += ":00:00" if digit == "0" else ":59:59"
    return f"TIMESTAMP'{prefix}.{digit * 6}'"


def _groups(answer: list[Row]) -> Groups:
    return {str(prefix): (int(count), int(checksum)) for prefix, count, checksum in answer}

"""A position: a typed, ordered point in a stream.

A position is a tuple of column values: `(timestamp,)`, `(id,)`, `(timestamp, id)`, `(version,)` or the
values of a composite key. Timestamps come in two kinds that never compare: instants (aware, UTC) and
wall-clock readings of a zoneless column (naive). A wall-clock reading is kept as the database wrote it,
because turning it into an instant is not reversible where a clock is set forward.

A position with fewer values than the stream has columns stands behind all that begin with it: `(noon,)`
comes after `(noon, 17)`, so a mark set to a bare timestamp has that whole timestamp behind it.

Text and bytes are ordered by the database's collation, not by Python: such positions know equality only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

Value = datetime | date | int | Decimal | str | bytes


@dataclass(frozen=True, slots=True)
class Position:
    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("a position has at least one value")
        for value in self.values:
            _check(value)

    @classmethod
    def of(cls, *values: Value) -> Position:
        return cls(values)

    def compare(self, other: Position) -> int | None:
        """-1, 0 or 1; None where only the database's collation could tell.

        A position that names fewer columns stands behind all rows that agree with it: `(t)` means that
        everything at `t` is included, whatever its id.
        """
        for mine, theirs in zip(self.values, other.values, strict=False):
            if mine == theirs:
                continue
            if isinstance(mine, str | bytes) or isinstance(theirs, str | bytes):
                return None
            return -1 if mine < theirs else 1  # type: ignore[operator]
        return (len(self.values) < len(other.values)) - (len(self.values) > len(other.values))

    def precedes(self, other: Position) -> bool:
        """Whether this is known to come before the other."""
        return self.compare(other) == -1

    def may_follow(self, low: Position | None) -> bool:
        """Whether there can be rows behind `low`, up to here; where only the database could tell, too."""
        return low is None or self.compare(low) not in (0, -1)

    def __lt__(self, other: Position) -> bool:
        if self.compare(other) is None:
            raise TypeError("positions of text or bytes are ordered by the database alone")
        return self.precedes(other)

    def __le__(self, other: Position) -> bool:
        return self == other or self < other

    def __str__(self) -> str:
        return " / ".join(_shown(value) for value in self.values)

    def to_json(self) -> list[Any]:
        return [_encode(value) for value in self.values]

    @classmethod
    def from_json(cls, data: list[Any]) -> Position:
        if not isinstance(data, list):
            raise ValueError(f"not a position: {data!r}")  # noqa: TRY004 - damage, not a wrong call
        return cls(tuple(_decode(item) for item in data))


def _check(value: Value) -> None:
    if isinstance(value, bool) or not isinstance(value, datetime | date | int | Decimal | str | bytes):
        raise TypeError(f"{type(value).__name__} cannot be part of a position")
    if isinstance(value, datetime) and value.tzinfo is not None and value.tzinfo is not UTC:
        raise ValueError("an instant in a position is in UTC")
    if isinstance(value, Decimal) and not value.is_finite():
        raise ValueError(f"{value} cannot be part of a position: it has no place in an order")


def _shown(value: Value) -> str:
    match value:
        case datetime():
            text = value.replace(tzinfo=None).isoformat(sep=" ")
            return text + "Z" if value.tzinfo else text
        case date():
            return value.isoformat()
        case bytes():
            return "0x" + value.hex()
        case _:
            return str(value)


def _encode(value: Value) -> Any:
    match value:
        case datetime():
            kind = "timestamp" if value.tzinfo is None else "instant"
            return {kind: value.replace(tzinfo=None).isoformat()}
        case date():
            return {"date": value.isoformat()}
        case Decimal():
            return {"decimal": str(value)}
        case bytes():
            return {"hex": value.hex()}
        case _:
            return value


def _decode(item: Any) -> Value:
    if isinstance(item, int | str) and not isinstance(item, bool):
        return item
    if isinstance(item, Mapping) and len(item) == 1:
        [(kind, text)] = item.items()
        match kind:
            case "timestamp":
                return datetime.fromisoformat(text).replace(tzinfo=None)
            case "instant":
                return datetime.fromisoformat(text).replace(tzinfo=UTC)
            case "date":
                return date.fromisoformat(text)
            case "decimal":
                return Decimal(text)
            case "hex":
                return bytes.fromhex(text)
            case _:
                pass
    raise ValueError(f"not a value of a position: {item!r}")

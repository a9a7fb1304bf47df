"""What a target cannot hold is found while rows pass by, before anything of them is staged."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.errors import LossyValue
from tidegate.core.mappings import Documents, Limits
from tidegate.core.types import Column
from tidegate.sources.contract import Read
from tidegate.sources.readers import exact


class Limited:
    """The columns of a read that their target does not take whatever they hold."""

    def __init__(self, read: Read, limits: Mapping[str, Limits], lost: Counter[str]) -> None:
        self._read = read
        self._limits = {
            place: (column, limits[column.name])
            for place, column in enumerate(read.columns)
            if column.name in limits
        }
        self._lost = lost

    def taken(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch as the target can hold it. Raises `LossyValue` where NULL is not allowed instead."""
        for place, (column, limits) in self._limits.items():
            wrong = _beyond(batch.column(place), limits)
            if wrong is not None:
                if column.name not in self._read.nulled:
                    raise self._refused(batch, column, limits, wrong)
                values = self._without(batch.column(place), column, wrong)
                batch = batch.set_column(place, batch.schema.field(place), values)
        return batch

    def _refused(self, batch: pa.RecordBatch, column: Column, limits: Limits, wrong: pa.Array) -> LossyValue:
        row = pc.index(wrong, pa.scalar(True)).as_py()  # noqa: FBT003 - the value looked for
        return exact.lossy(
            self._read,
            column,
            exact.shortened(_shown(batch.column(column.name)[row])),
            exact.row_of(batch, self._read, row),
            "its column at the target",
            as_text=limits.better_as_text,
        )

    def _without(self, values: pa.Array, column: Column, wrong: pa.Array) -> pa.Array:
        self._lost[column.name] += pc.sum(pc.cast(wrong, pa.int64())).as_py()
        return pc.if_else(wrong, pa.scalar(None, values.type), values)


def _shown(value: pa.Scalar) -> str:
    try:
        return repr(value.as_py())
    except (ValueError, OverflowError):  # a day beyond Python's calendar
        return str(value.cast(pa.string()))


def _beyond(values: pa.Array, limits: Limits) -> pa.Array | None:
    """Which values are beyond the limits; None: none of them. Most batches cost one look at their bytes."""
    wrong = []
    if not limits.nul and _has_nul(values):
        wrong.append(pc.match_substring(values, "\0"))
    if limits.most_bytes is not None:
        lengths = pc.binary_length(values)
        if (pc.max(lengths).as_py() or 0) > limits.most_bytes:
            wrong.append(pc.greater(lengths, limits.most_bytes))
    if limits.days is not None:
        wrong += _outside(pc.cast(values, pa.int32()), *limits.days)
    if limits.documents is not Documents.ANY:
        wrong += _misshapen(values, limits.documents)
    found = [pc.fill_null(each, False) for each in wrong]  # noqa: FBT003 - a NULL is within all limits
    if not any(pc.any(each).as_py() for each in found):
        return None
    return reduce(pc.or_, found)


def _has_nul(values: pa.Array) -> bool:
    """Whether the character is anywhere in the bytes of all texts, some of which may not belong to these."""
    data = values.buffers()[2]
    return data is not None and b"\0" in data.to_pybytes()


def _outside(days: pa.Array, first: int, last: int) -> list[pa.Array]:
    ends = pc.min_max(days)
    if (ends["min"].as_py() or 0) >= first and (ends["max"].as_py() or 0) <= last:
        return []
    return [pc.or_(pc.less(days, first), pc.greater(days, last))]


_LOOSE = "|".join(
    (
        r'\\[^"\\/bfnrtu]',  # an escape that JSON has not
        r"[0-9]\.(?:[^0-9]|$)",  # numbers that end in the middle
        r"[0-9][eE][-+]?(?:[^0-9]|$)",
        r"(?:^|[[:,\s])-(?:[^0-9]|$)",
        r'[{,]\s*"(?:[^"\\\x00-\x1f]|\\.)*[\x00-\x1f]',  # MariaDB takes any character in a key
    )
)
_SUSPECT = {Documents.VALID: _LOOSE, Documents.PAIRED: rf"{_LOOSE}|\\u[dD][89a-fA-F]"}
"""What documents have that a source takes for JSON and a target does not; few others have it."""


def _misshapen(values: pa.Array, documents: Documents) -> list[pa.Array]:
    suspects = pc.fill_null(pc.match_substring_regex(values, _SUSPECT[documents]), False)  # noqa: FBT003
    if not pc.any(suspects).as_py():
        return []
    looked_at = zip(values.to_pylist(), suspects.to_pylist(), strict=True)
    return [pa.array([suspect and not _is_json(text, documents) for text, suspect in looked_at], pa.bool_())]


def _is_json(text: str, documents: Documents) -> bool:
    try:
        found = json.loads(text, parse_constant=_no_constant, parse_int=str, parse_float=str)
        if documents is Documents.PAIRED:
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return False
    return True


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")

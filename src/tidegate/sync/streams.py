"""The streams of a table: its own, and those beside it."""

from __future__ import annotations

from tidegate.core.watermark import StreamId

RANGES = "@ranges"
"""Ranges that were asked for with `--from` and `--to`."""
NULL_CURSORS = "@null-cursor"
"""Rows without a cursor value, followed by id."""

JOB = "@job"
"""Held as long as a job of the table is at work; it never has a mark."""
_SUFFIXES = (RANGES, NULL_CURSORS, JOB)


def beside(stream: StreamId, suffix: str) -> StreamId:
    return StreamId(stream.pipeline, stream.name + suffix)


def family(stream: StreamId) -> tuple[StreamId, ...]:
    """All streams that a table can have, its own first."""
    own = owner(stream)
    return (own, *(beside(own, suffix) for suffix in (RANGES, NULL_CURSORS)))


def owner(stream: StreamId) -> StreamId:
    """The table's own stream."""
    for suffix in _SUFFIXES:
        if stream.name.endswith(suffix):
            return StreamId(stream.pipeline, stream.name.removesuffix(suffix))
    return stream

"""A record as text: JSON with a checksum, so that a changed byte is found and never believed.

The record of a stream is framed alike in files and objects: it names the stream and holds its watermark.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from tidegate.core import watermark as watermarks
from tidegate.core.errors import DamagedRecord
from tidegate.core.watermark import StreamId, Watermark

FORMAT = 1

T = TypeVar("T")

_SEAL = "check"
_HINT = "restore it with `tidegate watermark import`, or start over with `tidegate watermark reset`"


def seal(body: Mapping[str, Any]) -> str:
    return json.dumps({**body, _SEAL: _checksum(body)}, allow_nan=False)


def unseal(text: str | bytes, where: str) -> dict[str, Any]:
    """The record in `text`. Raises `DamagedRecord` if it is not exactly what was once sealed."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged(f"it is not JSON: {error}", where) from error
    if not isinstance(body, dict) or _SEAL not in body:
        raise damaged("it is JSON, but not a state record", where)
    found = body.pop(_SEAL)
    if found != _checksum(body):
        raise damaged("its checksum does not fit: a part of it was changed", where)
    return body


def framed(stream: StreamId, watermark: Watermark | None, **fields: Any) -> dict[str, Any]:
    """The record of a stream, to be sealed."""
    return {
        "format": FORMAT,
        "pipeline": stream.pipeline,
        "name": stream.name,
        **fields,
        "watermark": watermarks.to_json(watermark) if watermark else None,
    }


def frame_of(data: dict[str, Any]) -> tuple[StreamId, Watermark | None]:
    """The stream of a record, and its watermark, which is sound."""
    if data["format"] != FORMAT:
        raise ValueError(f"format {data['format']!r}, this version reads {FORMAT}")
    stream = StreamId(data["pipeline"], data["name"])
    watermark = None if data["watermark"] is None else watermarks.from_json(data["watermark"])
    if watermark is not None and watermark.stream != stream:
        raise ValueError(f"it holds the watermark of {watermark.stream}")
    return stream, watermark


def opened(text: str | bytes, where: str, build: Callable[[dict[str, Any]], T]) -> T:
    """What `build` makes of the record in `text`."""
    body = unseal(text, where)
    with reading(where):
        return build(body)


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Around making sense of what was stored: what cannot be understood is damaged, at this place."""
    try:
        yield
    except DamagedRecord as error:
        raise DamagedRecord(error.message, where=where, hint=error.hint) from error
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise damaged(said(error), where) from error


def damaged(problem: str, where: str) -> DamagedRecord:
    return DamagedRecord(f"the state record cannot be understood: {problem}", where=where, hint=_HINT)


def said(error: Exception) -> str:
    """What is wrong with a record, in the words of the error it caused."""
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body).encode()).hexdigest()[:32]

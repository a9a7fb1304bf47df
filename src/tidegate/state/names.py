"""What a stream's record is called, in a folder or in a bucket."""

from __future__ import annotations

import hashlib
from urllib.parse import unquote

from tidegate.core.watermark import StreamId

_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-.")
_BETWEEN = "~"
_LONGEST = 150
_KEPT = 100


def stem_of(stream: StreamId) -> str:
    """A name for the stream that no other stream has, wherever case or accents do not count.

    It can be read back, unless it would be too long: then its end is a hash, and the record says it all.
    """
    plain = _escaped(stream.pipeline) + _BETWEEN + _escaped(stream.name)
    if len(plain) <= _LONGEST:
        return plain
    return plain[:_KEPT] + _BETWEEN * 2 + hashlib.sha256(plain.encode()).hexdigest()[:32]


def _escaped(text: str) -> str:
    escaped = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in text.encode())
    return "%2e" + escaped[1:] if escaped.startswith(".") else escaped


def pipeline_of(stem: str) -> str | None:
    """The pipeline of the stream that is called so; None if the name is too short to say."""
    pipeline, *names = stem.split(_BETWEEN)
    return unquote(pipeline) if len(names) == 1 else None


def beginning_of(pipeline: str) -> str:
    """How the names of all streams of a pipeline begin; those of other pipelines may begin so too."""
    return (_escaped(pipeline) + _BETWEEN)[:_KEPT]

"""zstd for one entry: compressed where that saves at least a twentieth, and as it was everywhere else."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pyarrow as pa

from tidegate.archive.layout import Codec

WHOLE = 8 << 20
"""Files up to this size are held in memory; larger ones pass through it in pieces of this size."""
_PIECE = 1 << 20
_WORTH = 0.95


@cache
def codec_of(level: int) -> pa.Codec:
    return pa.Codec("zstd", compression_level=level)


def compressed(data: bytes, level: int) -> tuple[Codec, bytes]:
    """What to store for `data`. The same bytes in give the same bytes out, with one release of zstd."""
    if not data:
        return Codec.STORED, data
    smaller = codec_of(level).compress(data, asbytes=True)
    return (Codec.ZSTD, smaller) if len(smaller) <= len(data) * _WORTH else (Codec.STORED, data)


class Compressor:
    """Turns the pieces of a large file into what is stored: a zstd frame for each, or none at all.

    The first piece decides. Pieces are all of size `WHOLE` but the last, so that the frames of a file are
    always the same; a reader of zstd takes frames that follow each other for one.
    """

    def __init__(self, first: bytes, level: int) -> None:
        self.codec, _ = compressed(first, level)
        self._zstd = codec_of(level)

    def stored(self, piece: bytes) -> bytes:
        if self.codec is Codec.STORED:
            return piece
        frame: bytes = self._zstd.compress(piece, asbytes=True)
        return frame


def decompressed(codec: Codec, data: bytes, size: int) -> bytes:
    """The file that was stored as `data`, which had so many bytes; for small ones.

    Raises `OSError` where that is not what was once compressed.
    """
    if codec is Codec.STORED:
        return data
    whole: bytes = codec_of(1).decompress(data, decompressed_size=size, asbytes=True)
    return whole


def pieces(codec: Codec, source: Any, size: int) -> Iterator[bytes]:
    """The same as a stream. Damaged numbers cannot make it fill the memory."""
    stream = source if codec is Codec.STORED else pa.CompressedInputStream(source, "zstd")
    left = size
    while piece := stream.read(_PIECE):
        left -= len(piece)
        if left < 0:
            raise OSError(f"there is more than the {size} bytes it should hold")
        yield bytes(piece)

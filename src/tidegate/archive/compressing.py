"""zstd for one entry: compressed where that saves at least a twentieth, and as it was everywhere else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import zstandard

from tidegate.archive.layout import Codec

WHOLE = 8 << 20
"""Files up to this size are held in memory; larger ones pass through it in pieces of this size."""
_PIECE = 1 << 20
_WORTH = 0.95


class _Contexts(threading.local):
    """What zstd needs to work with, made once: making it costs as much as decoding a small file.

    No two threads may use one of them at a time.
    """

    def __init__(self) -> None:
        self.compressors: dict[int, zstandard.ZstdCompressor] = {}
        self.decompressor = zstandard.ZstdDecompressor()


_contexts = _Contexts()


def frame_of(data: bytes, level: int) -> bytes:
    """One frame of zstd. The same bytes in give the same bytes out, with one release of zstd."""
    compressor = _contexts.compressors.get(level)
    if compressor is None:
        compressor = _contexts.compressors[level] = zstandard.ZstdCompressor(level=level)
    return compressor.compress(data)


def content_of(frame: bytes, size: int) -> bytes:
    """What a frame holds, which is so many bytes. Raises `OSError` where it does not."""
    try:
        if zstandard.frame_content_size(frame) != size:  # or else it would say how much memory to take
            raise OSError(f"it does not hold the {size} bytes it should hold")
        return _contexts.decompressor.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise OSError(str(error)) from error


def compressed(data: bytes, level: int) -> tuple[Codec, bytes]:
    """What to store for `data`."""
    if not data:
        return Codec.STORED, data
    smaller = frame_of(data, level)
    return (Codec.ZSTD, smaller) if len(smaller) <= len(data) * _WORTH else (Codec.STORED, data)


class Compressor:
    """Turns the pieces of a large file into what is stored: a zstd frame for each, or none at all.

    The first piece decides. Pieces are all of size `WHOLE` but the last, so that the frames of a file are
    always the same; a reader of zstd takes frames that follow each other for one.
    """

    def __init__(self, first: bytes, level: int) -> None:
        self.codec, _ = compressed(first, level)
        self._level = level

    def stored(self, piece: bytes) -> bytes:
        return piece if self.codec is Codec.STORED else frame_of(piece, self._level)


def decompressed(codec: Codec, data: bytes, size: int) -> bytes:
    """The file that was stored as `data`, which had so many bytes; for small ones.

    Raises `OSError` where that is not what was once compressed.
    """
    return data if codec is Codec.STORED else content_of(data, size)


def pieces(codec: Codec, source: Any, size: int) -> Iterator[bytes]:
    """The same as a stream. Damaged numbers cannot make it fill the memory."""
    stream = source if codec is Codec.STORED else pa.CompressedInputStream(source, "zstd")
    left = size
    while piece := stream.read(_PIECE):
        left -= len(piece)
        if left < 0:
            raise OSError(f"there is more than the {size} bytes it should hold")
        yield bytes(piece)

"""Nothing is believed to lie in a shard that was not read back from it, and decoded again."""

from __future__ import annotations

import io
import random
from typing import Any

import pytest

from tests.archive.shards import Memory, checksum_of, origin, shard
from tidegate.archive import compressing
from tidegate.archive.naming import fingerprint
from tidegate.archive.shard import Shard
from tidegate.archive.writing import Packed, ShardWriter, Written
from tidegate.core.errors import DamagedShard

NOISE = random.Random(11)
FILES = {"text": b"tide gate " * 60, "noise": NOISE.randbytes(400), "large": b"ebb and flow " * 90}


class Forgetful(io.BytesIO):
    """A device that keeps one bit the wrong way round, or everything but the end."""

    def __init__(self, flipped: int | None = None, most: int = 1 << 30) -> None:
        super().__init__()
        self._flipped = flipped
        self._most = most

    def write(self, data: Any, /) -> int:
        begin, kept = self.tell(), bytearray(data)
        if self._flipped is not None and begin <= self._flipped < begin + len(kept):
            kept[self._flipped - begin] ^= 4
        super().write(kept[: max(0, self._most - begin)])
        self.seek(begin + len(kept))
        return len(kept)


def _write(file: io.BytesIO) -> Written:
    writer = ShardWriter(file, max_bytes=1 << 30, level=1)
    for uid in sorted(FILES, key=fingerprint):
        if uid == "large":
            content = FILES[uid]
            writer.add_stream(origin(uid), [content[at : at + 300] for at in range(0, len(content), 300)])
        else:
            writer.add(origin(uid), Packed.of(FILES[uid], 1))
    return writer.finish()


def test_a_shard_that_was_written_is_known_by_the_checksum_that_its_end_holds() -> None:
    file = io.BytesIO()
    written = _write(file)
    assert written.sha256 == checksum_of(file.getvalue())
    assert written.bytes == len(file.getvalue())
    assert written.index.equals(Shard(Memory(file.getvalue())).index())


def test_a_bit_that_a_device_keeps_wrongly_is_found_wherever_it_lies() -> None:
    whole = io.BytesIO()
    for place in range(0, _write(whole).bytes, 7):
        with pytest.raises(DamagedShard, match="not what was written"):
            _write(Forgetful(place))


def test_an_end_that_a_device_never_keeps_is_missed() -> None:
    size = _write(io.BytesIO()).bytes
    for lost in (1, 100, size // 2):
        with pytest.raises(DamagedShard):
            _write(Forgetful(most=size - lost))


def _careless(data: bytes, level: int) -> bytes:
    """A compressor that now and then compresses something else."""
    return _frame_of(data.replace(b"flow", b"flaw").replace(b"gate", b"gaze"), level)


_frame_of = compressing.frame_of


@pytest.mark.parametrize("streamed", [[], ["only"]], ids=["whole", "in pieces"])
def test_what_does_not_decode_to_what_it_was_is_found(
    streamed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compressing, "frame_of", _careless)
    with pytest.raises(DamagedShard, match="does not decode to what it was"):
        shard({"only": b"tide gate, ebb and flow " * 60}, streamed=streamed)

"""Writing what is proved on the way: nothing is believed to lie in a file that was not read back from it.

Frames of zstd are decoded again and compared with what they were made of; what is appended to a file is read
back from the system and compared with what it should be. Comparing bytes costs a tenth of summing them up,
and lets less through.
"""

from __future__ import annotations

import io
from typing import Any, BinaryIO

from tidegate.archive.compressing import content_of
from tidegate.core.errors import DamagedShard

_AT_ONCE = 256 << 10
_HINT = "run it again; if it happens again, look after this machine's disk and memory"


class ProvenFile:
    """A file that is appended to, many small pieces at a time, each of them read back."""

    def __init__(self, file: BinaryIO) -> None:
        file.flush()
        # A buffer of this process would only copy what is gathered here, and could answer for the system.
        self._file: Any = getattr(file, "raw", file)
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._settled = 0

    def append(self, *pieces: bytes) -> None:
        self._waiting += pieces
        self._waiting_bytes += sum(map(len, pieces))
        if self._waiting_bytes >= _AT_ONCE:
            self.settle()

    def settle(self) -> None:
        """Write what waits, and prove it."""
        data = b"".join(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        self._write(self._settled, data)
        self._settled += len(data)

    def replace(self, offset: int, data: bytes) -> None:
        """Write over what was appended before."""
        self.settle()
        self._write(offset, data)

    def cut(self, length: int) -> None:
        """Let what was appended behind so many bytes be gone. They had been settled by then."""
        self._waiting, self._waiting_bytes = [], 0
        self._settled = length
        self._file.seek(length)
        self._file.truncate()

    def finish(self) -> None:
        """Write the last of it, and see that there is no more and no less in the file."""
        self.settle()
        if self._file.seek(0, io.SEEK_END) != self._settled:
            raise DamagedShard("the file is not as long as what was written", hint=_HINT)

    def _write(self, offset: int, data: bytes) -> None:
        self._file.seek(offset)
        written = self._file.write(data)
        while written < len(data):
            written += self._file.write(data[written:])
        self._file.seek(offset)
        if self._read(len(data)) != data:
            raise DamagedShard("what was read back is not what was written", hint=_HINT)

    def _read(self, length: int) -> bytes:
        found: bytes = self._file.read(length)
        while len(found) < length and (more := self._file.read(length - len(found))):
            found += more
        return found


def prove_frame(frame: bytes, content: bytes) -> None:
    """Decode a frame, and see that it is what it was made of."""
    try:
        decoded = content_of(frame, len(content))
    except OSError as error:
        raise DamagedShard(f"what was compressed cannot be decoded: {error}", hint=_HINT) from error
    if decoded != content:
        raise DamagedShard("what was compressed does not decode to what it was", hint=_HINT)

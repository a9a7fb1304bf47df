"""Messages of the PostgreSQL protocol, version 3."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidegate.core.errors import ConnectError


@dataclass(frozen=True, slots=True)
class Message:
    kind: bytes
    body: bytes = b""

    def __bytes__(self) -> bytes:
        return self.kind + struct.pack("!i", len(self.body) + 4) + self.body


class Line:
    """One end of a connection, read and written in messages."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._file = end.makefile("rb")

    def start_up(self) -> bytes:
        """The first message has no kind."""
        (size,) = struct.unpack("!i", self._exactly(4))
        return self._exactly(size - 4)

    def read(self) -> Message:
        kind, size = struct.unpack("!ci", self._exactly(5))
        return Message(kind, self._exactly(size - 4))

    def send(self, *messages: Message) -> None:
        self._end.sendall(b"".join(map(bytes, messages)))

    def send_raw(self, data: bytes) -> None:
        self._end.sendall(data)

    def cut(self) -> None:
        """Let whoever reads from this line in another thread find it at its end."""
        self._end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """At once, as a machine that is gone."""
        self._end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._file.close()
        self._end.close()

    def _exactly(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise ConnectError("the other end is gone")
        return data


def text(*parts: str) -> bytes:
    return b"".join(part.encode() + b"\0" for part in parts)


def error(message: str, code: str) -> Message:
    fields = {"S": "ERROR", "V": "ERROR", "C": code, "M": message}
    return Message(b"E", b"".join(kind.encode() + text(value) for kind, value in fields.items()) + b"\0")


def notice(message: str) -> Message:
    fields = {"S": "INFO", "V": "INFO", "C": "00000", "M": message}
    return Message(b"N", b"".join(kind.encode() + text(value) for kind, value in fields.items()) + b"\0")


def fields_of(message: Message) -> dict[str, str]:
    """What an error or a notice says, by the kind of field."""
    parts = message.body.rstrip(b"\0").split(b"\0")
    return {part[:1].decode(): part[1:].decode(errors="replace") for part in parts if part}


def cells(message: Message) -> list[str | None]:
    """The values of a row that came as text."""
    (count,) = struct.unpack_from("!h", message.body)
    found: list[str | None] = []
    place = 2
    for _ in range(count):
        (size,) = struct.unpack_from("!i", message.body, place)
        place += 4
        found.append(None if size < 0 else message.body[place : place + size].decode())
        place += max(size, 0)
    return found


def with_texts(body: bytes, changed: Callable[[str], str]) -> bytes:
    """The body of a Bind message with its text parameters changed; its two names come first."""
    _, rest = strings(body, 2)
    (formats,) = struct.unpack_from("!h", rest)
    place = 2 + 2 * formats
    (count,) = struct.unpack_from("!h", rest, place)
    place += 2
    made = [body[: len(body) - len(rest)] + rest[:place]]
    for _ in range(count):
        (size,) = struct.unpack_from("!i", rest, place)
        place += 4
        value = rest[place : place + max(size, 0)]
        place += max(size, 0)
        text = changed(value.decode()).encode() if size > 0 else value
        made.append(struct.pack("!i", len(text) if size > 0 else size) + text)
    return b"".join([*made, rest[place:]])


def strings(body: bytes, count: int) -> tuple[Sequence[str], bytes]:
    """The texts that a message begins with, and the rest of it."""
    *found, rest = body.split(b"\0", count)
    return [part.decode() for part in found], rest

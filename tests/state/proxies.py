"""A proxy between a store and its server, that cuts the line at a chosen moment."""

from __future__ import annotations

import contextlib
import re
import selectors
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto

from tests.servers import HOST, Server


class Cut(Enum):
    BEFORE = auto()
    """The server never hears the word."""
    AFTER = auto()
    """The server hears it, acts on it, and nobody hears the answer."""


@dataclass
class Line:
    """Cuts the connection, once, when the client says `word`."""

    server: Server
    word: bytes = rb"COMMIT(?!TED)"
    cut: Cut | None = None
    cuts: int = 0

    def carry(self, client: socket.socket) -> None:
        with client, socket.create_connection((self.server.host, self.server.port)) as upstream:
            selector = selectors.DefaultSelector()
            selector.register(client, selectors.EVENT_READ, upstream)
            selector.register(upstream, selectors.EVENT_READ, client)
            with contextlib.closing(selector), contextlib.suppress(OSError):
                while all(self._pass_on(key.fileobj, key.data, client) for key, _ in selector.select()):
                    pass

    def _pass_on(self, source: object, sink: socket.socket, client: socket.socket) -> bool:
        assert isinstance(source, socket.socket)
        data = source.recv(65536)
        if not data:
            return False
        if source is client and self.cut is not None and re.search(self.word, data):
            return self._cut(data, sink)
        sink.sendall(data)
        return True

    def _cut(self, data: bytes, sink: socket.socket) -> bool:
        if self.cut is Cut.AFTER:
            sink.sendall(data)
            sink.recv(65536)  # the answer: what was asked for has been done
        self.cut = None
        self.cuts += 1
        return False


@contextlib.contextmanager
def proxied(server: Server) -> Iterator[tuple[Server, Line]]:
    """The same server behind a proxy of its own."""
    line = Line(server)
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
        stopped = threading.Event()

        def accept() -> None:
            while not stopped.is_set():
                with contextlib.suppress(OSError):
                    client, _ = listener.accept()
                    threading.Thread(target=line.carry, args=(client,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield replace(server, host=HOST, port=port), line
        finally:
            stopped.set()
            with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
                pass  # wakes the thread that waits for a client
            thread.join(5)

"""A way to a server that breaks at a chosen moment."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto


class Break(Enum):
    """Where the connection breaks when the client sends the fatal words."""

    BEFORE = auto()
    """The server never sees them."""
    AFTER = auto()
    """The server acts on them, and its answer is lost."""


@dataclass
class Proxy:
    """Passes bytes on until the client sends `words`; breaks once, and is reliable from then on."""

    server: tuple[str, int]
    words: bytes
    when: Break
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))
    broken: threading.Event = field(default_factory=threading.Event)

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def serve(self) -> None:
        with suppress(OSError):  # the listener was closed: the test is over
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        with closing(client), closing(socket.create_connection(self.server)) as server:
            answers = threading.Thread(target=_pass_on, args=(server, client), daemon=True)
            answers.start()
            with suppress(OSError):
                self._requests(client, server)
            _shut(client)
            _shut(server)
            answers.join()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        while data := client.recv(65536):
            if self.words in data and not self.broken.is_set():
                self.broken.set()
                if self.when is Break.AFTER:
                    # The client hears nothing more; the server gets the words and time to obey.
                    _shut(client)
                    server.sendall(data)
                    self._wait_for_end(server)
                return
            server.sendall(data)

    def _wait_for_end(self, server: socket.socket) -> None:
        server.shutdown(socket.SHUT_WR)  # the server finishes what it was told, then hangs up
        server.settimeout(120)
        with suppress(OSError):
            while server.recv(65536):
                pass


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    _shut(sink)


def _shut(side: socket.socket) -> None:
    with suppress(OSError):
        side.shutdown(socket.SHUT_RDWR)


@contextmanager
def breaking(server: tuple[str, int], words: bytes, when: Break) -> Iterator[Proxy]:
    proxy = Proxy(server, words, when)
    with closing(proxy.listener):
        threading.Thread(target=proxy.serve, daemon=True).start()
        yield proxy
        _shut(proxy.listener)

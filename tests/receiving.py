"""A real HTTP server that takes alerts, and answers as a test wants it to."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Arrived:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Receiver:
    url: str
    arrived: list[Arrived] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    """The next answers; 200 when there are none left."""
    silent: threading.Event | None = None
    """If it is there, nothing is answered until it is set."""

    @property
    def alerts(self) -> list[tuple[str, str, str | None]]:
        """What arrived, as (turn, kind, stream)."""
        found = [item for message in self.arrived for item in message.json["alerts"]]
        return [(item["turn"], item["kind"], item["stream"]) for item in found]


@contextmanager
def receiving() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.arrived.append(Arrived(self.path, dict(self.headers), body))
            if receiver.silent is not None:
                receiver.silent.wait(1800)
            answer = receiver.answers.pop(0) if receiver.answers else 200
            self.send_response(answer)
            if answer in (301, 302, 307):
                self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver = Receiver(f"http://127.0.0.1:{server.server_port}/hook")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        if receiver.silent is not None:
            receiver.silent.set()
        server.shutdown()
        server.server_close()
        thread.join()

"""An S3 server that ignores conditions, as several do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.servers import HOST, S3Server


@contextmanager
def careless_server(heeds: str | None = None) -> Iterator[S3Server]:
    """Takes every write, except that it may heed one kind of condition."""

    class Careless(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        server_version = "Careless/1.0"
        sys_version = ""

        def do_GET(self) -> None:
            self._answer(404)

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(412 if heeds and heeds in self.headers else 200)

        def _answer(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.send_header("ETag", '"e"')
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((HOST, 0), Careless) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield S3Server(server.server_port, "secret", 0, Path(), bucket="b")
        finally:
            server.shutdown()
            thread.join()

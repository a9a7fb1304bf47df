"""What monitoring asks: as a page over HTTP while the archiver runs for ever, as a file after one cycle."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.archive.place import problems
from tidegate.core.errors import UsageError

if TYPE_CHECKING:
    from http.server import BaseHTTPRequestHandler

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass
class Figures:
    """The archiver as monitoring sees it. Written by the cycle, read by the server's threads."""

    lag_seconds: float = 0.0
    files_total: int = 0
    files_pending: int = 0
    duration_seconds: float = 0.0
    failures_total: int = 0
    failing: str | None = None
    """What the last cycle failed with; None if it did not."""
    last_success: datetime | None = None
    _turn: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def set(self, **values: object) -> None:
        with self._turn:
            for name, value in values.items():
                setattr(self, name, value)

    def text(self) -> str:
        """In the form that Prometheus reads."""
        with self._turn:
            known = [
                (
                    "des_watermark_lag_seconds",
                    "gauge",
                    "Time from the mark to the cut-off.",
                    self.lag_seconds,
                ),
                ("des_migration_files_total", "counter", "Files archived so far.", self.files_total),
                ("des_migration_files_pending", "gauge", "Files that wait.", self.files_pending),
                (
                    "des_migration_duration_seconds",
                    "gauge",
                    "Length of the last cycle.",
                    self.duration_seconds,
                ),
                ("des_migration_failures_total", "counter", "Cycles that failed.", self.failures_total),
            ]
            if self.last_success is not None:
                name, help_ = "des_migration_last_success_timestamp_seconds", "When a cycle last succeeded."
                known.append((name, "gauge", help_, self.last_success.timestamp()))
        lines = [
            f"# HELP {name} {help_}\n# TYPE {name} {kind}\n{name} {value!r}\n"
            for name, kind, help_, value in known
        ]
        return "".join(lines)


def write_textfile(path: Path, figures: Figures) -> None:
    """Whole or not at all: a collector never reads half of it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with problems(str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            beside.write_text(figures.text(), encoding="utf-8")
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise


@contextmanager
def serving(figures: Figures, host: str, port: int) -> Iterator[str]:
    """Serve `/metrics` and `/healthz` as long as this lasts; the address is given back."""
    from http.server import ThreadingHTTPServer

    try:
        server = ThreadingHTTPServer((host, port), _handler(figures))
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"metrics cannot be served: {error}",
            where=f"{host}:{port}",
            hint="choose another port with --metrics-port or metrics.port",
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield f"http://{host}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(figures: Figures) -> type[BaseHTTPRequestHandler]:
    from http.server import BaseHTTPRequestHandler

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            match self.path.partition("?")[0]:
                case "/metrics":
                    self._answer(200, figures.text(), _CONTENT_TYPE)
                case "/healthz" if figures.failing is None:
                    self._answer(200, "ok\n", "text/plain; charset=utf-8")
                case "/healthz":
                    # What failed stands in the log; here it could show a secret to anybody.
                    self._answer(503, "the last cycle failed\n", "text/plain; charset=utf-8")
                case _:
                    self._answer(404, "there are /metrics and /healthz\n", "text/plain; charset=utf-8")

        def _answer(self, code: int, text: str, kind: str) -> None:
            body = text.encode()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Every scrape in the log would drown the rest."""

    return Handler

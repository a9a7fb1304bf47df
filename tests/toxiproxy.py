"""A client for toxiproxy: a proxy that slows, cuts and loses what passes through it."""

from __future__ import annotations

import contextlib
import json
import secrets
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Stream = Literal["upstream", "downstream"]

ENOUGH_TO_LOSE = 30
"""Bytes of an answer that are let through before the line is cut: the client has begun to read, and will not
learn what it was going to be told. (One byte is not enough for clients that wait for `100 Continue`.)"""


@dataclass(frozen=True)
class Toxiproxy:
    """The proxy's own server, which can stand before any number of others."""

    port: int
    pid: int
    folder: Path
    host: str = "127.0.0.1"

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @contextmanager
    def before(self, port: int) -> Iterator[Proxied]:
        """Stand before the server on this port, as long as the block runs."""
        name = f"p{secrets.token_hex(6)}"
        proxy = {"name": name, "listen": f"{self.host}:0", "upstream": f"{self.host}:{port}", "enabled": True}
        made = self.call("POST", "/proxies", proxy)
        try:
            yield Proxied(self, name, int(made["listen"].rpartition(":")[2]))
        finally:
            self.call("DELETE", f"/proxies/{name}")

    def answers(self) -> bool:
        with contextlib.suppress(OSError):
            return "version" in self.call("GET", "/version")
        return False

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, method=method)
        with urllib.request.urlopen(request, timeout=120) as answer:
            text = answer.read()
        found: dict[str, Any] = json.loads(text) if text else {}
        return found


@dataclass(frozen=True)
class Proxied:
    """A server behind the proxy: talk to `port` instead of its own."""

    toxiproxy: Toxiproxy
    name: str
    port: int

    @contextmanager
    def toxic(self, kind: str, stream: Stream = "downstream", **attributes: int) -> Iterator[None]:
        """Poison what passes (`latency`, `reset_peer`, `timeout`, `limit_data` …) while the block runs."""
        name = self.add_toxic(kind, stream, **attributes)
        try:
            yield
        finally:
            self.remove_toxic(name)

    def add_toxic(self, kind: str, stream: Stream = "downstream", **attributes: int) -> str:
        name = f"t{secrets.token_hex(6)}"
        toxic = {"name": name, "type": kind, "stream": stream, "toxicity": 1.0, "attributes": attributes}
        self.toxiproxy.call("POST", f"/proxies/{self.name}/toxics", toxic)
        return name

    def remove_toxic(self, name: str) -> None:
        self.toxiproxy.call("DELETE", f"/proxies/{self.name}/toxics/{name}")

    def losing_answers(self, after: int = ENOUGH_TO_LOSE) -> contextlib.AbstractContextManager[None]:
        """The server hears and does what it is asked, and the line is cut in the middle of its answer."""
        return self.toxic("limit_data", bytes=after)

    @contextmanager
    def down(self) -> Iterator[None]:
        """Nobody listens."""
        self._enable(enabled=False)
        try:
            yield
        finally:
            self._enable(enabled=True)

    def _enable(self, *, enabled: bool) -> None:
        # Without its address it would listen on another port afterwards.
        where = f"{self.toxiproxy.host}:{self.port}"
        self.toxiproxy.call("POST", f"/proxies/{self.name}", {"enabled": enabled, "listen": where})

"""Losing one answer of an S3 server, and only that one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.toxiproxy import ENOUGH_TO_LOSE, Proxied


@dataclass
class Requests:
    """What a client sent, every attempt of it, while it was watched."""

    sent: list[str] = field(default_factory=list)
    lost: str | None = None
    """The request that was carried out and whose answer nobody heard."""


@contextmanager
def losing_answer(proxied: Proxied, client: Any, number: int) -> Iterator[Requests]:
    """Lose the answer to the client's request of this number, counted from 1; the next ones are answered.

    The proxy is told when botocore is about to send: whatever it sends next, a retry too, finds it mended.
    """
    requests = Requests()
    toxics: list[str] = []

    def about_to_send(request: Any, **_: Any) -> None:
        while toxics:
            proxied.remove_toxic(toxics.pop())
        requests.sent.append(f"{request.method} {request.url}")
        if len(requests.sent) == number:
            requests.lost = requests.sent[-1]
            toxics.append(proxied.add_toxic("limit_data", bytes=ENOUGH_TO_LOSE))

    client.meta.events.register("before-send.s3", about_to_send)
    try:
        yield requests
    finally:
        client.meta.events.unregister("before-send.s3", about_to_send)
        while toxics:
            proxied.remove_toxic(toxics.pop())

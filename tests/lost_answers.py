"""Breaking the line to an S3 server at a chosen request, and only there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.toxiproxy import ENOUGH_TO_LOSE, Proxied, Stream


@dataclass
class Requests:
    """What a client sent, every attempt of it, while it was watched."""

    sent: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    """The requests that were not answered."""


@contextmanager
def watching(client: Any, about_to_send: Callable[[str], None] = lambda _: None) -> Iterator[Requests]:
    """Note what the client sends; `about_to_send` is told before each request, a retry too."""
    requests = Requests()

    def note(request: Any, **_: Any) -> None:
        requests.sent.append(f"{request.method} {request.url}")
        about_to_send(requests.sent[-1])

    client.meta.events.register("before-send.s3", note)
    try:
        yield requests
    finally:
        client.meta.events.unregister("before-send.s3", note)


@contextmanager
def losing_answer(
    proxied: Proxied,
    client: Any,
    number: int,
    *,
    times: int = 1,
    heard: bool = True,
    after: int = ENOUGH_TO_LOSE,
) -> Iterator[Requests]:
    """Lose the answer to the client's request of this number, counted from 1, and to the ones after it.

    With `heard`, the server does what it is asked; without, it never hears all of the request. The line is
    cut `after` so many bytes: in the first lines, if nothing else is said. The proxy is told when botocore
    is about to send, so what it sends afterwards finds the line mended.
    """
    stream: Stream = "downstream" if heard else "upstream"
    toxics: list[str] = []

    def mend() -> None:
        while toxics:
            proxied.remove_toxic(toxics.pop())

    def about_to_send(request: str) -> None:
        mend()
        if number <= len(requests.sent) < number + times:
            requests.broken.append(request)
            toxics.append(proxied.add_toxic("limit_data", stream, bytes=after))

    with watching(client, about_to_send) as requests:
        try:
            yield requests
        finally:
            mend()

"""Messages over HTTP: signed, tried again, and never waited for longer than was said.

A message is delivered in a thread of its own. Whoever sends it waits until it has arrived or its time is up,
whatever the network does meanwhile: looking up a name, for one, knows no timeout.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import threading
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from urllib.parse import unquote, urlsplit

TIMESTAMP = "Tidegate-Timestamp"
SIGNATURE = "Tidegate-Signature"
_FIRST_PAUSE = 0.5
_TOO_MANY = 429
_SERVERS_FAULT = 500


@dataclass(frozen=True)
class Delivery:
    """A message, and how much may be done to bring it there."""

    name: str
    """What warnings call the receiver: its address may be a secret."""
    url: str = field(repr=False)
    body: bytes = field(repr=False)
    secret: str | None = field(default=None, repr=False)
    attempts: int = 3
    timeout: timedelta = timedelta(seconds=5)
    max_time: timedelta = timedelta(seconds=15)


class Undelivered(Exception):
    """Why a message did not arrive, and whether trying again may help."""

    def __init__(self, reason: str, *, again: bool) -> None:
        super().__init__(reason)
        self.again = again


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """What proves that a body was sent by somebody who knows the secret, at that time."""
    digest = hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256)
    return f"v1={digest.hexdigest()}"


def deliver(deliveries: Sequence[Delivery], clock: Callable[[], datetime]) -> dict[str, str | None]:
    """Send all of them at once; for each receiver, why its message did not arrive, or None."""
    outcomes: dict[str, str | None] = {}
    begun = time.monotonic()
    threads = [(_started(delivery, clock, outcomes), delivery) for delivery in deliveries]
    for thread, delivery in threads:
        thread.join(max(0.0, begun + delivery.max_time.total_seconds() - time.monotonic()))
    return {delivery.name: outcomes.get(delivery.name, _too_late(delivery)) for delivery in deliveries}


def _too_late(delivery: Delivery) -> str:
    return f"no answer within {delivery.max_time.total_seconds():g} s"


def _started(
    delivery: Delivery, clock: Callable[[], datetime], outcomes: dict[str, str | None]
) -> threading.Thread:
    def work() -> None:
        outcomes[delivery.name] = _delivered(delivery, clock)

    # A daemon: one that hangs does not keep the process from ending.
    thread = threading.Thread(target=work, name=f"alert {delivery.name}", daemon=True)
    thread.start()
    return thread


def _delivered(delivery: Delivery, clock: Callable[[], datetime]) -> str | None:
    end = time.monotonic() + delivery.max_time.total_seconds()
    for attempt in range(delivery.attempts):
        pause = _FIRST_PAUSE * 2**attempt
        try:
            _post(delivery, clock(), max(0.1, end - time.monotonic()))
        except Undelivered as problem:
            last = attempt + 1 == delivery.attempts or time.monotonic() + pause >= end
            if last or not problem.again:
                return str(problem)
            time.sleep(pause)
        else:
            return None
    return None


def _post(delivery: Delivery, now: datetime, left: float) -> None:
    opener = urllib.request.build_opener(_NoRedirects)
    try:
        request = urllib.request.Request(
            _address(delivery.url), delivery.body, _headers(delivery, now), method="POST"
        )
        with opener.open(request, timeout=min(left, delivery.timeout.total_seconds())):
            return
    except urllib.error.HTTPError as error:
        with error:
            again = error.code >= _SERVERS_FAULT or error.code == _TOO_MANY
            raise Undelivered(f"{_host(delivery)} answered {error.code}", again=again) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        # The error's own words may hold the address, and the address may be a secret.
        why = getattr(error, "reason", error)
        if isinstance(why, TimeoutError):
            raise Undelivered(f"no answer from {_host(delivery)}", again=True) from None
        told = why.strerror if isinstance(why, OSError) and why.strerror else type(error).__name__
        raise Undelivered(f"{_host(delivery)} cannot be reached: {told}", again=True) from None


def _headers(delivery: Delivery, now: datetime) -> dict[str, str]:
    timestamp = str(int(now.timestamp()))
    headers = {"Content-Type": "application/json", "User-Agent": "tidegate", TIMESTAMP: timestamp}
    if delivery.secret:
        headers[SIGNATURE] = signature(delivery.secret, timestamp, delivery.body)
    parts = urlsplit(delivery.url)
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {b64encode(login.encode()).decode()}"
    return headers


def _address(url: str) -> str:
    """Without the user and the password that may stand in it: they travel in a header."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _host(delivery: Delivery) -> str:
    return urlsplit(delivery.url).hostname or "the receiver"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A POST that is redirected arrives as a GET without its body: better to be told."""

    def redirect_request(self, *_: object) -> None:
        return None

"""Who is told when something is wrong: the entries of `alerts` in connections.yml."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from tidegate.config.kinds import Duration, Model


class Kind(StrEnum):
    """What can be wrong with a stream, and the news that it no longer is."""

    FAILURE = "failure"
    """A run failed."""
    DIFFERENCE = "difference"
    """Verification found that source and target differ."""
    HELD_BACK = "held_back"
    """A transaction that stays open holds the ceiling back."""
    PENDING = "pending"
    """Staged files wait to be loaded."""
    STUCK = "stuck"
    """A plan was made and is not carried out."""
    MISSING = "missing"
    """A run that should have been has not been."""
    RECOVERY = "recovery"


def _address(url: SecretStr) -> SecretStr:
    text = url.get_secret_value()
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # its own words show a part of the address
        usable = False
    if not usable:
        raise ValueError("expected an address that begins with https:// or http://")
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("expected an address in which blanks and what is not ASCII are written as %XX")
    return url


def _not_long(value: timedelta) -> timedelta:
    if not timedelta(0) < value <= timedelta(minutes=1):
        raise ValueError("expected at most a minute: whoever tells does not wait for longer")
    return value


def _one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _some(kinds: frozenset[Kind]) -> frozenset[Kind]:
    if not kinds - {Kind.RECOVERY}:
        raise ValueError("there is nothing in it to recover from")
    return kinds


Kinds = Annotated[frozenset[Kind], BeforeValidator(_one_or_many), AfterValidator(_some)]
Patience = Annotated[Duration, AfterValidator(_not_long)]


class Receiver(Model):
    """What all receivers have in common."""

    url: Annotated[SecretStr, AfterValidator(_address)]
    """Often a secret by itself."""
    on: Kinds = frozenset(Kind)
    held_back_for: Duration = timedelta(minutes=15)
    pending_for: Duration = timedelta(hours=1)
    remind_every: Duration | None = None
    attempts: Annotated[int, Field(ge=1, le=10)] = 3
    timeout: Patience = timedelta(seconds=5)
    """Of one attempt."""
    max_time: Patience = timedelta(seconds=15)
    """Of all attempts together, and of all that a run waits for."""


class WebhookReceiver(Receiver):
    type: Literal["webhook"] = "webhook"
    secret: SecretStr | None = None
    """What messages are signed with; None: they are not."""


class SlackReceiver(Receiver):
    type: Literal["slack"] = "slack"


AlertReceiver = WebhookReceiver | SlackReceiver

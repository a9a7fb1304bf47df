"""Alerts: what is wrong with a pipeline's streams, told once when it begins and once when it is over.

Whoever looks at a pipeline says what it looked at and what it found wrong there:

    alerts = alerts_of(pipeline, hidden=secrets.hidden, clock=now)
    look = Look("shop", looked_at={(Kind.FAILURE, "orders")}, found=(Condition(Kind.FAILURE, "orders", "…"),))
    for warning in alerts.tell(look):
        terminal.warn(warning)

What is found and was not told before is news; so is what was told, was looked at again and not found. All
news of one look travel in one message. What could not be delivered is not remembered as told, so the next
look tries again. Telling takes a bounded time, raises nothing, and changes nothing but its own memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from tidegate.config.alerts import Kind
from tidegate.core.errors import TidegateError
from tidegate.observe.figures import counted, span
from tidegate.observe.telling import Memory, Told, folder_memory
from tidegate.observe.webhooks import Delivery, deliver

if TYPE_CHECKING:
    from tidegate.config.alerts import AlertReceiver
    from tidegate.config.deltas import DeltaPipeline
    from tidegate.config.pipelines import Pipeline

__all__ = ["Alerts", "Condition", "Kind", "Look", "alerts_of"]

Key = tuple[Kind, str]
"""A kind of trouble, and the stream that has it; the pipeline as a whole is the stream without a name."""
FORMAT = 1
_LONGEST_TEXT = 2000
_MOST_ITEMS = 50


@dataclass(frozen=True)
class Condition:
    """Something that is wrong now."""

    kind: Kind
    stream: str
    message: str
    since: datetime | None = None
    """None: since this look."""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return self.kind, self.stream


@dataclass(frozen=True)
class Look:
    """What somebody looked at, and what is wrong there."""

    pipeline: str
    looked_at: AbstractSet[Key]
    found: tuple[Condition, ...] = ()
    execution_id: str | None = None


class Turn(StrEnum):
    BEGAN = "began"
    STILL = "still"
    OVER = "over"


@dataclass(frozen=True)
class Item:
    turn: Turn
    condition: Condition


@dataclass(frozen=True)
class Receiver:
    """Somebody to tell, and what of."""

    name: str
    model: AlertReceiver
    url: str = field(repr=False)
    secret: str | None = field(default=None, repr=False)

    def waits(self, kind: Kind) -> timedelta:
        """How long a condition has to last before it is worth a word."""
        match kind:
            case Kind.HELD_BACK:
                return self.model.held_back_for
            case Kind.PENDING:
                return self.model.pending_for
            case _:
                return timedelta(0)


def news(look: Look, told: Mapping[Key, Told], receiver: Receiver, now: datetime) -> tuple[Item, ...]:
    """What this receiver does not know yet."""
    worth = {c.key: c for c in look.found if c.kind in receiver.model.on and _lasts(c, receiver, now)}
    remind = receiver.model.remind_every
    items = [
        Item(Turn.STILL if key in told else Turn.BEGAN, condition)
        for key, condition in worth.items()
        if key not in told or (remind is not None and abs(now - told[key].at) >= remind)
    ]
    over = [key for key in told if key in look.looked_at and key not in worth]
    return (*items, *(Item(Turn.OVER, _was(key, told[key])) for key in over))


def _lasts(condition: Condition, receiver: Receiver, now: datetime) -> bool:
    return now - (condition.since or now) >= receiver.waits(condition.kind)


def _was(key: Key, told: Told) -> Condition:
    return Condition(key[0], key[1], told.message, told.since)


@dataclass(frozen=True)
class Alerts:
    """A pipeline's receivers, and what they have been told."""

    receivers: tuple[Receiver, ...]
    memory: Memory
    hidden: Callable[[str], str]
    """Takes secrets out of text."""
    clock: Callable[[], datetime]
    problems: tuple[str, ...] = ()
    """Why some receivers cannot be told anything."""

    def wants(self, kind: Kind) -> bool:
        return any(kind in receiver.model.on for receiver in self.receivers)

    def tell(self, look: Look) -> list[str]:
        """Tell the news of this look; returns what went wrong, as warnings."""
        if not self._due(look, self.clock()):
            return list(self.problems)
        # What another run is telling at this moment is no news when it has been told.
        with self.memory.turn(self._patience):
            return self._tell(look, self.clock())

    @property
    def _patience(self) -> timedelta:
        return max(receiver.model.max_time for receiver in self.receivers)

    def _tell(self, look: Look, now: datetime) -> list[str]:
        clean = replace(look, found=tuple(self._clean(condition, now) for condition in look.found))
        due = self._due(clean, now)
        spoken = {name: _spoken(items, self._receiver(name)) for name, items in due.items()}
        deliveries = [self._delivery(clean, name, items, now) for name, items in spoken.items() if items]
        outcomes = deliver(deliveries, self.clock)
        warnings = list(self.problems)
        for name, items in due.items():
            problem = outcomes.get(name)
            if problem is None:
                warnings += self.memory.remember(name, _remembered(items, now), _forgotten(items))
            else:
                warnings.append(f"the alert could not be delivered to `{name}`: {problem}")
        return warnings

    def try_out(self, pipeline: str) -> dict[str, str | None]:
        """Send everybody a message that says it is a test; for each, why it did not arrive, or None."""
        now = self.clock()
        condition = Condition(Kind.FAILURE, "", "this is a test of alerts, nothing is wrong", now)
        look = Look(pipeline, frozenset(), (condition,), execution_id="test")
        items = (Item(Turn.BEGAN, condition),)
        return deliver([self._delivery(look, r.name, items, now) for r in self.receivers], self.clock)

    def _due(self, look: Look, now: datetime) -> dict[str, tuple[Item, ...]]:
        found = {
            receiver.name: news(look, self.memory.recall(receiver.name), receiver, now)
            for receiver in self.receivers
        }
        return {name: items for name, items in found.items() if items}

    def _receiver(self, name: str) -> Receiver:
        return next(receiver for receiver in self.receivers if receiver.name == name)

    def _clean(self, condition: Condition, now: datetime) -> Condition:
        """Without any secret, and not too long; what begins with this look says so."""
        facts = {name: self._plain(value) for name, value in condition.facts.items()}
        message = self._plain(condition.message)
        return replace(condition, message=message, since=condition.since or now, facts=facts)

    def _plain(self, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        text = _sendable(self.hidden(value))
        return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"

    def _delivery(self, look: Look, name: str, items: tuple[Item, ...], now: datetime) -> Delivery:
        receiver = self._receiver(name)
        form = slack_form if receiver.model.type == "slack" else json_form
        return Delivery(
            name,
            receiver.url,
            json.dumps(form(look, items, now), ensure_ascii=False, default=str).encode(),
            receiver.secret,
            receiver.model.attempts,
            receiver.model.timeout,
            receiver.model.max_time,
        )


def _sendable(text: str) -> str:
    """What came from bytes that are no text cannot be sent as one."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _spoken(items: Iterable[Item], receiver: Receiver) -> tuple[Item, ...]:
    return tuple(i for i in items if i.turn is not Turn.OVER or Kind.RECOVERY in receiver.model.on)


def _remembered(items: Iterable[Item], now: datetime) -> dict[Key, Told]:
    return {
        item.condition.key: Told(item.condition.message, item.condition.since or now, now)
        for item in items
        if item.turn is not Turn.OVER
    }


def _forgotten(items: Iterable[Item]) -> set[Key]:
    return {item.condition.key for item in items if item.turn is Turn.OVER}


# --- What a message says -------------------------------------------------------


def json_form(look: Look, items: tuple[Item, ...], now: datetime) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "sent_at": now.isoformat(),
        "pipeline": look.pipeline,
        "execution_id": look.execution_id,
        "text": "\n".join(_lines(look, items, now)),
        "alerts": [_item(item) for item in items[:_MOST_ITEMS]],
        "left_out": max(0, len(items) - _MOST_ITEMS),
    }


def slack_form(look: Look, items: tuple[Item, ...], now: datetime) -> dict[str, Any]:
    """One line of text for each item, with the three signs escaped that such receivers read as their own."""
    text = "\n".join(_lines(look, items, now))
    return {"text": text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")}


def _item(item: Item) -> dict[str, Any]:
    condition = item.condition
    return {
        "turn": item.turn.value,
        "kind": condition.kind.value,
        "stream": condition.stream or None,
        "message": condition.message,
        "since": condition.since.isoformat() if condition.since else None,
        "facts": dict(condition.facts),
    }


def _lines(look: Look, items: tuple[Item, ...], now: datetime) -> list[str]:
    lines = [_line(look, item, now) for item in items[:_MOST_ITEMS]]
    more = len(items) - _MOST_ITEMS
    return [*lines, f"… and {counted(more, 'more', 'more')}"] if more > 0 else lines


def _line(look: Look, item: Item, now: datetime) -> str:
    condition = item.condition
    where = f"{look.pipeline}/{condition.stream}" if condition.stream else look.pipeline
    what = condition.kind.value.replace("_", " ")
    lasted = span(now - condition.since) if condition.since else ""
    match item.turn:
        case Turn.BEGAN:
            return f"Tidegate: {what} in {where}: {condition.message}"
        case Turn.STILL:
            return f"Tidegate: still {what} in {where}, for {lasted}: {condition.message}"
        case Turn.OVER:
            return f"Tidegate: {where} has recovered from {what} after {lasted}"


# --- From the configuration ----------------------------------------------------


def alerts_of(
    pipeline: Pipeline | DeltaPipeline, *, hidden: Callable[[str], str], clock: Callable[[], datetime]
) -> Alerts:
    """The alerts of a pipeline. A receiver that cannot be used is a warning, not an obstacle."""
    receivers, problems = [], []
    for name in pipeline.alert_names:
        try:
            receivers.append(_receiver(name, pipeline.alert(name)))
        except TidegateError as error:
            problems.append(f"the alert `{name}` cannot be used: {error}")
    own = {text for r in receivers for text in (r.url, r.secret) if text}
    return Alerts(
        receivers=tuple(receivers),
        memory=folder_memory(pipeline.folder, pipeline.name),
        hidden=lambda text: _without(hidden(text), own),
        clock=clock,
        problems=tuple(problems),
    )


def _without(text: str, secrets: Iterable[str]) -> str:
    from tidegate.core.secrecy import HIDDEN

    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def _receiver(name: str, model: AlertReceiver) -> Receiver:
    secret = getattr(model, "secret", None)
    return Receiver(
        name, model, model.url.get_secret_value(), secret.get_secret_value() if secret is not None else None
    )

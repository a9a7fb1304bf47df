"""Whether all is well with a pipeline's plans: stuck ones, runs that are missing, failures in a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tidegate.config.upstreams import Limits
from tidegate.core.records import current
from tidegate.core.watermark import Event, Watermark
from tidegate.delta.plan import has_failed, is_planned, version_of
from tidegate.observe.alerts import Condition, Kind, Look
from tidegate.observe.figures import counted, span

_JUDGED = (Kind.STUCK, Kind.MISSING, Kind.FAILURE)


@dataclass(frozen=True)
class Seen:
    """What is known of an upstream without looking at its table."""

    name: str
    mark: Watermark | None
    events: Sequence[Event] = ()
    """Its newest, newest last."""

    @property
    def failures(self) -> int:
        """How many times in a row it has failed."""
        count = 0
        for event in reversed(self.events):
            if event.kind == "completed":
                break
            count += event.kind == "failed"
        return count

    @property
    def completed_at(self) -> datetime | None:
        return self.mark.extracted.at if self.mark else None


def look_at(pipeline: str, seen: Sequence[Seen], limits: Limits, now: datetime) -> Look:
    """What is wrong with the upstreams, and what was looked at to know."""
    found = [condition for item in seen for condition in _wrong(item, limits, now)]
    looked_at = {(kind, item.name) for item in seen for kind in _JUDGED}
    return Look(pipeline, looked_at, tuple(found))


def _wrong(seen: Seen, limits: Limits, now: datetime) -> Iterator[Condition]:
    yield from _stuck(seen, limits, now)
    yield from _missing(seen, limits, now)
    if seen.failures >= limits.failures:
        error = seen.mark.last_error if seen.mark else None
        message = f"failed {counted(seen.failures, 'time')} in a row, the last time with: {error}"
        yield Condition(Kind.FAILURE, seen.name, message, facts={"failures": seen.failures})


def _stuck(seen: Seen, limits: Limits, now: datetime) -> Iterator[Condition]:
    if seen.mark is None or not (is_planned(seen.mark) or has_failed(seen.mark)):
        return
    row = current(seen.mark)
    waits = now - row.created_at
    if waits > limits.stuck_after:
        run = seen.mark.current_run
        message = f"plan {run.id} has been open for {span(waits.total_seconds())}"
        yield Condition(Kind.STUCK, seen.name, message, row.created_at, {"run_id": run.id})


def _missing(seen: Seen, limits: Limits, now: datetime) -> Iterator[Condition]:
    if limits.missing_after is None:
        return
    last = seen.completed_at
    if last is None:
        yield Condition(Kind.MISSING, seen.name, "it was never processed")
    elif now - last > limits.missing_after:
        message = f"nothing was completed for {span((now - last).total_seconds())}"
        yield Condition(Kind.MISSING, seen.name, message, last)


# --- Figures -----------------------------------------------------------------------


def figures(pipeline: str, seen: Sequence[Seen], look: Look, now: datetime) -> str:
    """The same as metrics, in the text format of Prometheus."""
    lines = []
    for name, (kind, words) in _METRICS.items():
        lines += [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
        for item in seen:
            value = _values(item, look, now)[name]
            if value is not None:
                labels = f'pipeline="{_escaped(pipeline)}",upstream="{_escaped(item.name)}"'
                lines.append(f"{name}{{{labels}}} {value:g}")
    return "\n".join(lines) + "\n"


_METRICS: Mapping[str, tuple[str, str]] = {
    "tidegate_delta_version": ("gauge", "The last version that was processed."),
    "tidegate_delta_open_seconds": ("gauge", "How long the plan has been open; 0 if none is."),
    "tidegate_delta_since_completed_seconds": ("gauge", "How long ago a plan was last completed."),
    "tidegate_delta_failures_in_a_row": ("gauge", "Failures since a plan was last completed."),
    "tidegate_delta_trouble": ("gauge", "How many things are wrong: stuck, missing, failing."),
}


def _values(seen: Seen, look: Look, now: datetime) -> dict[str, Any]:
    mark = seen.mark
    waiting = mark is not None and (is_planned(mark) or has_failed(mark))
    version = version_of(mark.extracted.position) if mark else None
    since = seen.completed_at
    return {
        "tidegate_delta_version": version,
        "tidegate_delta_open_seconds": (now - current(mark).created_at).total_seconds()
        if waiting and mark
        else 0,
        "tidegate_delta_since_completed_seconds": (now - since).total_seconds() if since else None,
        "tidegate_delta_failures_in_a_row": seen.failures,
        "tidegate_delta_trouble": sum(condition.stream == seen.name for condition in look.found),
    }


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

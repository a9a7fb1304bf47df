"""Windows that are worked on elsewhere: nothing is staged, and whoever does the work says how it ended.

Planned by `transitions.plan` and failed by `transitions.fail`, as any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from tidegate.core.errors import InvariantBroken
from tidegate.core.transitions import Step
from tidegate.core.watermark import Event, Extracted, Loaded, Run, RunKind, RunState, Watermark


def start(mark: Watermark, *, run_id: str, now: datetime) -> Step:
    """Somebody begins to work on the window, under this name. One that was left by another is unchanged."""
    run = _direct(mark)
    data: dict[str, Any] = {"run": run.number, "window": run.window.to_json()}
    if run.id != run_id:
        data["left_by"] = run.id
    started = replace(run, id=run_id, state=RunState.RUNNING, started_at=now, finished_at=None, error=None)
    return replace(mark, run=started, updated_at=now), (Event("started", now, run_id, data),)


def retry(mark: Watermark, now: datetime, *, run_id: str | None = None) -> Step:
    """The same window again, after a failure, under its own name or as part of another plan.

    What went wrong is kept until it has gone well.
    """
    run = _direct(mark)
    moved = run_id not in (None, run.id)
    again = replace(
        run,
        id=run_id or run.id,
        state=RunState.PLANNED,
        together=None if moved else run.together,
    )
    data = {"run": run.number, "window": run.window.to_json()}
    return replace(mark, run=again, updated_at=now), (Event("retried", now, again.id, data),)


def complete(mark: Watermark, *, rows: int, now: datetime, into: Sequence[str] = ()) -> Step:
    """The window was worked on to its end. Nothing lies between the two marks, so both move at once.

    `into` names the tables that have it now, where that is known.
    """
    run = _direct(mark)
    high = run.window.high
    done = replace(run, state=RunState.SUCCEEDED, progress=high, rows=rows, finished_at=now, error=None)
    total = mark.extracted.rows_total + rows
    moved = replace(
        mark,
        run=done,
        extracted=Extracted(position=high, rows_total=total, rows_last_run=rows, at=now),
        loaded=Loaded(position=high, rows_total=total, at=now),
        last_error=None,
        updated_at=now,
    )
    data = {"run": run.number, "rows": rows, "window": run.window.to_json()}
    if into:
        data["into"] = list(into)
    return moved, (Event("completed", now, run.id, data),)


def skip(mark: Watermark, *, reason: str | None, now: datetime) -> Step:
    """Leave the window to a later run: the mark stays where it is."""
    run = _direct(mark)
    given_up = replace(run, state=RunState.SKIPPED, finished_at=now)
    event = Event("skipped", now, run.id, {"run": run.number, "reason": reason})
    return replace(mark, run=given_up, updated_at=now), (event,)


def _direct(mark: Watermark) -> Run:
    run = mark.current_run
    if run.kind is not RunKind.DIRECT:
        raise InvariantBroken(f"run {run.id} stages what it reads", where=str(mark.stream))
    return run

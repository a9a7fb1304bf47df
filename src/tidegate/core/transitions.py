"""How a watermark may change: pure functions from one committed state to the next.

A mark moves forward only by `advance`, which takes receipts, and where nothing is staged by `complete` of
`direct`, which takes the word of whoever did the work. It moves backwards only by `move`, which takes a
reason. Nothing here removes a pending segment except `loaded` and the audited acts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from tidegate.core.errors import InvariantBroken, UsageError
from tidegate.core.lossy import tally
from tidegate.core.positions import Position
from tidegate.core.quality import Findings
from tidegate.core.receipts import Receipt, Segment
from tidegate.core.watermark import (
    Candidate,
    Event,
    Extracted,
    Loaded,
    Round,
    Run,
    RunKind,
    RunState,
    StreamId,
    Watermark,
)
from tidegate.core.windows import Window, merge, tiles

Step = tuple[Watermark, tuple[Event, ...]]
"""A next state and what the history shall say about it."""


def new(stream: StreamId, cursor: tuple[str, ...], now: datetime) -> Watermark:
    return Watermark(stream=stream, created_at=now, updated_at=now, cursor=cursor)


def plan(
    mark: Watermark,
    *,
    run_id: str,
    kind: RunKind,
    window: Window,
    now: datetime,
    cursor: tuple[str, ...],
    schema: tuple[str, Any] | None = None,
    lookback: bool = False,
    rules: str | None = None,
    together: int | None = None,
    after: int = 0,
    tables: str | None = None,
) -> Step:
    """Freeze a window. `tables` says, for the history alone, in which order the pipeline goes about them.

    A window that is worked on elsewhere begins at the mark, so that nothing is left out; if the last attempt
    at it failed, that attempt gives way.

    Run numbers follow the clock, so that of two runs into the same table the later one has the larger
    number, even across streams and after state was lost; they never go back within a stream, nor behind
    `after`. A mark that is moved by hand takes a number too: whoever moves it has decided about all runs
    before.
    """
    if mark.open_run is not None and not _gives_way(mark.open_run, kind):
        raise InvariantBroken(f"run {mark.open_run.id} has not finished its window", where=str(mark.stream))
    if kind is RunKind.DIRECT and mark.extracted.position not in (None, window.low):
        raise InvariantBroken(
            f"{window} does not begin at the mark, {mark.extracted.position}", where=str(mark.stream)
        )
    number = next_number(max(mark.runs, after), now)
    run = Run(
        id=run_id,
        number=number,
        kind=kind,
        state=RunState.PLANNED,
        window=window,
        progress=window.low,
        started_at=now,
        lookback=lookback,
        rules=rules,
        together=together,
    )
    planned = replace(mark, run=run, runs=number, cursor=cursor, began=_began(mark, run), updated_at=now)
    data = {"run": number, "window": window.to_json(), "run_kind": kind.value}
    if schema is not None:
        data["schema"] = schema[0]
    if tables is not None:
        data["tables"] = tables
    return _with_schema(planned, schema), (Event("planned", now, run_id, data),)


def next_number(last: int, now: datetime) -> int:
    """Follows the clock, and never goes back: neither across streams nor after state was lost."""
    return max(last + 1, int(now.timestamp() * 1000))


def _began(mark: Watermark, run: Run) -> Position | None:
    """Where the range that ends at the mark begins, once the run has gone through its window.

    A look-back reads rows from before the range began: they belong to it from now on. A snapshot adds nothing
    to it; if it is given up, the mark is still where it was.
    """
    low = run.window.low
    if mark.extracted.position is None:
        return low
    if run.kind is RunKind.SNAPSHOT:
        return mark.began
    if mark.began is None or low is None:
        return None
    return low if low.precedes(mark.began) else mark.began


def _gives_way(run: Run, kind: RunKind) -> bool:
    return run.kind is kind is RunKind.DIRECT and run.state is RunState.FAILED


def _with_schema(mark: Watermark, schema: tuple[str, Any] | None) -> Watermark:
    if schema is None:
        return mark
    needed = {segment.schema for segment in mark.pending}
    kept = tuple(item for item in mark.schemas if item[0] in needed and item[0] != schema[0])
    return replace(mark, schemas=(*kept, schema), schema=schema[0])


def schema_changed(mark: Watermark, after: str, changes: Sequence[str], now: datetime) -> tuple[Event, ...]:
    """What the history says of a source whose columns are others now; nothing, if they are not."""
    if mark.schema is None or mark.schema == after:
        return ()
    run_id = mark.open_run.id if mark.open_run else None
    data = {"before": mark.schema, "after": after, "changes": list(changes)}
    return (Event("schema changed", now, run_id, data),)


def accept(
    mark: Watermark, schema: tuple[str, Any], changes: Sequence[str], *, reason: str, now: datetime
) -> Step:
    """Go on with a source whose columns have changed, because somebody has decided so."""
    _demand_reason(reason)
    data = {"before": mark.schema, "after": schema[0], "changes": list(changes)}
    event = _manual(mark, "accept", reason, now, data)
    schemas = tuple({**dict(mark.schemas), schema[0]: schema[1]}.items())
    accepted = replace(mark, schemas=schemas, schema=schema[0], last_error=None, updated_at=now)
    return accepted, (event,)


def begin_round(mark: Watermark, window: Window, cuts: Sequence[Position], now: datetime) -> Watermark:
    """Record how the next part of the window is cut, before any of it is read."""
    run = mark.current_run
    if run.round is not None and not run.round.finished:
        raise InvariantBroken("the last round has not finished", where=str(mark.stream))
    if window.low != run.progress:
        raise InvariantBroken(
            f"a round from {window.low} would leave a gap after {run.progress}", where=str(mark.stream)
        )
    done = run.chunks_done + (run.round.done if run.round else 0)
    started = replace(
        run,
        state=RunState.RUNNING,
        round=Round(window, tuple(cuts)),
        chunks_done=done,
        finished_at=None,
        error=None,
    )
    return replace(mark, run=started, updated_at=now)


def resume(mark: Watermark, schema: tuple[str, Any], now: datetime) -> Watermark:
    """Go on with the frozen window of a run that was interrupted or failed.

    The source's schema may have changed meanwhile; segments of either may become pending.
    """
    run = replace(mark.current_run, state=RunState.RUNNING, finished_at=None, error=None)
    schemas = tuple({**dict(mark.schemas), schema[0]: schema[1]}.items())
    return replace(mark, run=run, schemas=schemas, schema=schema[0], last_error=None, updated_at=now)


def restart_snapshot(mark: Watermark, now: datetime) -> Watermark:
    """Give up an interrupted snapshot: what it staged belongs to no complete picture of the table."""
    run = mark.current_run
    if run.kind is not RunKind.SNAPSHOT:
        raise InvariantBroken("only a snapshot starts again", where=str(mark.stream))
    skipped = replace(
        run, state=RunState.SKIPPED, staged=(), quarantined=(), findings=None, round=None, finished_at=now
    )
    return replace(mark, run=skipped, updated_at=now)


def advance(mark: Watermark, receipts: Sequence[Receipt], now: datetime) -> Watermark:
    """Move `extracted` over the next chunks of the round, which these receipts prove done."""
    run = mark.current_run
    if run.round is None or not receipts:
        raise InvariantBroken("there is no round these receipts could belong to", where=str(mark.stream))
    expected = run.round.chunks[run.round.done : run.round.done + len(receipts)]
    proved = [receipt.window for receipt in receipts]
    if [chunk.window for chunk in expected] != proved or any(r.run_id != run.id for r in receipts):
        raise InvariantBroken("the receipts are not those of the next chunks", where=str(mark.stream))
    high = proved[-1].high
    if not tiles(Window(run.progress, high), proved):
        raise InvariantBroken("the receipts leave a gap or overlap", where=str(mark.stream))
    segments = tuple(receipt.segment for receipt in receipts if receipt.segment is not None)
    rows = sum(receipt.rows for receipt in receipts)
    lossy = tally(*(receipt.lossy for receipt in receipts))
    moved = replace(
        run,
        progress=high,
        rows=run.rows + rows,
        lossy=tally(run.lossy, lossy),
        round=replace(run.round, done=run.round.done + len(receipts)),
        staged=run.staged + segments if _held_back(run) else (),
        findings=_findings(run, receipts),
        quarantined=run.quarantined + tuple(r.quarantined for r in receipts if r.quarantined is not None),
    )
    if _held_back(run):
        return replace(mark, run=moved, updated_at=now)
    return replace(
        mark,
        run=moved,
        pending=mark.pending + segments,
        extracted=Extracted(
            position=_furthest(mark.extracted.position, high),
            rows_total=mark.extracted.rows_total + rows,
            rows_last_run=moved.rows,
            at=now,
            lossy=tally(mark.extracted.lossy, lossy),
        ),
        updated_at=now,
    )


def _held_back(run: Run) -> bool:
    """Whether its segments become the target's to load all at once, or never."""
    return run.kind is RunKind.SNAPSHOT or run.rules is not None


def _findings(run: Run, receipts: Sequence[Receipt]) -> Findings | None:
    found = [receipt.findings for receipt in receipts if receipt.findings is not None]
    return sum(found, run.findings or Findings()) if found else run.findings


def _furthest(mark: Position | None, high: Position | None) -> Position | None:
    """A look-back re-reads rows behind the mark; the mark waits until the run has passed it."""
    if mark is not None and high is not None and high.precedes(mark):
        return mark
    return high


def finish(mark: Watermark, now: datetime) -> Step:
    """The window is proved done. A snapshot's segments become pending here, all at once.

    Only the newest complete snapshot is loaded, so an older one that is still pending gives way.
    """
    run = mark.current_run
    if run.round is None or not run.round.finished or run.progress != run.window.high:
        raise InvariantBroken(f"run {run.id} has not reached the end of its window", where=str(mark.stream))
    done = replace(
        run,
        state=RunState.SUCCEEDED,
        round=None,
        staged=(),
        quarantined=(),
        rows_aside=sum(segment.rows for segment in run.quarantined),
        finished_at=now,
        error=None,
    )
    finished = replace(mark, run=done, last_error=None, updated_at=now)
    superseded: tuple[Segment, ...] = ()
    if run.kind is RunKind.SNAPSHOT:
        superseded = mark.pending
        finished = replace(
            finished,
            pending=run.staged,
            extracted=replace(_all_read(mark, run, now), position=None),
        )
    elif run.rules is not None:
        finished = replace(finished, pending=mark.pending + run.staged, extracted=_all_read(mark, run, now))
    data: dict[str, Any] = {
        "run": run.number,
        "rows": run.rows,
        "window": run.window.to_json(),
        "position": finished.extracted.position.to_json() if finished.extracted.position else None,
    }
    if superseded:
        data["superseded"] = [segment.key for segment in superseded]
    if run.findings is not None:
        data["findings"] = run.findings.to_json()
    if run.lossy:
        data["lossy"] = dict(run.lossy)
    aside = (_quarantined(mark, run, run.quarantined, (), now),) if run.quarantined else ()
    return finished, (Event("extracted", now, run.id, data), *aside)


def _all_read(mark: Watermark, run: Run, now: datetime) -> Extracted:
    return Extracted(
        position=_furthest(mark.extracted.position, run.window.high),
        rows_total=mark.extracted.rows_total + run.rows,
        rows_last_run=run.rows,
        at=now,
        lossy=tally(mark.extracted.lossy, run.lossy),
    )


def _quarantined(
    mark: Watermark, run: Run, segments: tuple[Segment, ...], reasons: Sequence[str], now: datetime
) -> Event:
    data = {
        "rows": sum(segment.rows for segment in segments),
        "segments": [segment.to_json() for segment in segments],
        "schemas": {key: value for key, value in mark.schemas if key in {s.schema for s in segments}},
        "reasons": list(reasons),
    }
    return Event("quarantined", now, run.id, data)


def quarantine(mark: Watermark, reasons: Sequence[str], now: datetime) -> Step:
    """Put aside all rows of a run: its window is done, and nothing of it is the target's to load."""
    run = mark.current_run
    finished, (extracted, *_) = finish(mark, now)
    everything = _quarantined(mark, run, run.staged + run.quarantined, reasons, now)
    done = None if finished.run is None else replace(finished.run, rows_aside=run.rows)
    return replace(finished, run=done, pending=mark.pending), (extracted, everything)


def reject(mark: Watermark, reasons: Sequence[str], now: datetime) -> Step:
    """Give up a run whose rows break the rules: the mark stays, and the next run reads its window again."""
    run = mark.current_run
    data = {
        "rows": run.rows,
        "reasons": list(reasons),
        "findings": run.findings.to_json() if run.findings else None,
        "dropped": [segment.key for segment in run.staged + run.quarantined],
    }
    return replace(mark, run=_given_up(run, now), updated_at=now), (Event("rejected", now, run.id, data),)


def give_up(mark: Watermark, now: datetime) -> Watermark:
    """Give up a run that was interrupted under other rules; what it had committed stays committed.

    Also where it was a range beside the mark: no finished run will tell of that part.
    """
    run = mark.current_run
    given_up = replace(mark, run=_given_up(run, now), updated_at=now)
    if _held_back(run) or run.progress == run.window.low:
        return given_up
    return cover(given_up, Window(run.window.low, run.progress), now)


def redrive(
    mark: Watermark,
    released: Sequence[str],
    segments: Sequence[Segment],
    schemas: dict[str, Any],
    *,
    reason: str,
    now: datetime,
) -> Step:
    """Take files out of quarantine, and let these segments be loaded after all."""
    _demand_reason(reason)
    known = {segment.key for segment in mark.pending}
    again = tuple(segment for segment in segments if segment.key not in known)
    merged = {**schemas, **dict(mark.schemas)}
    event = _manual(mark, "redrive", reason, now, {"released": list(released)})
    return replace(mark, pending=mark.pending + again, schemas=tuple(merged.items()), updated_at=now), (
        event,
    )


def still_aside(run_id: str | None, segment: Segment, schemas: dict[str, Any], now: datetime) -> Event:
    """What is left in quarantine of a file that was judged again: each row carries its own reason."""
    data = {"rows": segment.rows, "segments": [segment.to_json()], "schemas": schemas, "reasons": []}
    return Event("quarantined", now, run_id, data)


def discard(mark: Watermark, keys: Sequence[str], *, reason: str, now: datetime) -> Step:
    """Give up quarantined segments for good."""
    _demand_reason(reason)
    event = _manual(mark, "discard", reason, now, {"released": list(keys)})
    return replace(mark, updated_at=now), (event,)


def nothing_new(mark: Watermark, now: datetime) -> Watermark:
    return replace(
        mark,
        extracted=replace(mark.extracted, rows_last_run=0, at=now),
        last_error=None,
        updated_at=now,
    )


def remember(mark: Watermark, candidates: tuple[Candidate, ...], now: datetime) -> Watermark:
    return replace(mark, candidates=candidates, updated_at=now)


def fail(mark: Watermark, error: str, now: datetime) -> Step:
    """Record what went wrong. The window, its progress and all pending segments stay."""
    run = mark.open_run
    failed = replace(run, state=RunState.FAILED, finished_at=now, error=error) if run else mark.run
    data = {"run": run.number, "error": error} if run else {"error": error}
    event = Event("failed", now, run.id if run else None, data)
    return replace(mark, run=failed, last_error=error, updated_at=now), (event,)


def loaded(mark: Watermark, keys: Collection[str], now: datetime) -> Step:
    """Move `loaded` over segments that the target's ledger holds."""
    done = tuple(segment for segment in mark.pending if segment.key in keys)
    if len(done) != len(set(keys)):
        raise InvariantBroken("a segment was loaded that was not pending", where=str(mark.stream))
    rest = tuple(segment for segment in mark.pending if segment.key not in keys)
    rows = sum(segment.rows for segment in done)
    moved = replace(
        mark,
        pending=rest,
        loaded=Loaded(_reached(mark, keys), rows_total=mark.loaded.rows_total + rows, at=now),
        last_error=None,
        updated_at=now,
    )
    data = {
        "rows": rows,
        "generation": mark.generation,
        "segments": [segment.to_json() for segment in done],
        "schemas": {key: value for key, value in mark.schemas if key in {s.schema for s in done}},
    }
    return moved, (Event("loaded", now, mark.run.id if mark.run else None, data),)


def _reached(mark: Watermark, keys: Collection[str]) -> Position | None:
    """How far everything is loaded: up to the first segment that is still pending, never past `extracted`."""
    position = mark.loaded.position
    for segment in mark.pending:
        if segment.key not in keys:
            return _nearest(position, mark.extracted.position)
        position = _furthest(position, segment.window.high)
    return mark.extracted.position


def _nearest(mark: Position | None, limit: Position | None) -> Position | None:
    """`mark`, unless it lies past `limit`."""
    return limit if mark is not None and (limit is None or limit.precedes(mark)) else mark


def name(mark: Watermark, names: Mapping[str, str], now: datetime) -> Step:
    """Remember what columns are called at the target, before any row goes there under these names."""
    event = Event("named", now, mark.run.id if mark.run else None, {"names": dict(names)})
    return replace(mark, names=tuple(names.items()), updated_at=now), (event,)


def cover(mark: Watermark, window: Window, now: datetime) -> Watermark:
    """Remember a range that was read apart from the mark."""
    return replace(mark, covered=tuple(merge([*mark.covered, window])), updated_at=now)


def move(mark: Watermark, position: Position | None, *, reason: str, now: datetime) -> Step:
    """Set `extracted` by hand. An unfinished window is given up.

    `loaded` is never ahead of `extracted`, so moving back takes it along. Pending segments that lie wholly
    behind the new mark stay pending; those after it will be read again, so they are dropped, by name.
    """
    for segment in mark.pending:
        if _straddles(segment, position):
            raise UsageError(
                f"a pending segment, {segment.window}, reaches across {position}",
                where=str(mark.stream),
                hint="load it first with `tidegate sync --load-only`, or choose one of its ends",
            )
    dropped = [segment.key for segment in mark.pending if starts_after(segment, position)]
    return _moved(mark, position, "set", dropped=dropped, reason=reason, now=now)


def reset_extracted(mark: Watermark, *, reason: str, now: datetime) -> Step:
    """Read the source again from the start, ranges too; what is pending still loads."""
    moved, events = _moved(mark, None, "reset extracted", dropped=[], reason=reason, now=now)
    return replace(moved, covered=()), events


def _moved(
    mark: Watermark, position: Position | None, act: str, *, dropped: list[str], reason: str, now: datetime
) -> Step:
    _demand_reason(reason)
    to = position.to_json() if position else None
    event = _manual(mark, act, reason, now, {"to": to, "dropped": dropped})
    behind = [Window(mark.began, mark.extracted.position)] if mark.extracted.position else []
    moved = replace(
        mark,
        extracted=replace(mark.extracted, position=position, at=now),
        loaded=replace(mark.loaded, position=_nearest(mark.loaded.position, position)),
        pending=tuple(segment for segment in mark.pending if segment.key not in dropped),
        began=position,
        covered=tuple(merge([*mark.covered, *behind])),
        run=_given_up(mark.run, now),
        runs=next_number(mark.runs, now),
        candidates=(),
        manual=reason,
        last_error=None,
        updated_at=now,
    )
    return moved, (event,)


def _straddles(segment: Segment, position: Position | None) -> bool:
    """Whether the position cuts a segment in two: its tail would be read again, its head would not."""
    low, high = segment.window.low, segment.window.high
    if segment.snapshot or position is None or high is None:
        return False
    return position.precedes(high) and (low is None or low.precedes(position))


def starts_after(segment: Segment, position: Position | None) -> bool:
    """Whether all of a segment's rows will be read again by a stream that goes on from the position."""
    low = segment.window.low
    if position is None:
        return True
    return low is not None and low.compare(position) in (0, 1)


def reset(mark: Watermark, *, reason: str, now: datetime) -> Step:
    """Start the stream over. Run numbers and the generation go on, so nothing old can pass for new."""
    _demand_reason(reason)
    event = _manual(mark, "reset", reason, now, {"dropped": [segment.key for segment in mark.pending]})
    fresh = replace(
        new(mark.stream, mark.cursor, mark.created_at),
        updated_at=now,
        run=_given_up(mark.run, now),
        runs=next_number(mark.runs, now),
        generation=next_number(mark.generation, now),
        names=mark.names,
        manual=reason,
    )
    return fresh, (event,)


def reset_loaded(
    mark: Watermark, segments: Sequence[Segment], schemas: dict[str, Any], *, reason: str, now: datetime
) -> Step:
    """Load these segments of the past, and the pending ones, once more, under a new generation."""
    _demand_reason(reason)
    known = {segment.key for segment in mark.pending}
    again = tuple(segment for segment in segments if segment.key not in known)
    event = _manual(mark, "reset loaded", reason, now, {"again": [segment.key for segment in again]})
    merged = {**schemas, **dict(mark.schemas)}
    reopened = replace(
        mark,
        pending=again + mark.pending,
        loaded=Loaded(),
        schemas=tuple(merged.items()),
        generation=next_number(mark.generation, now),
        manual=reason,
        updated_at=now,
    )
    return reopened, (event,)


def _manual(mark: Watermark, act: str, reason: str, now: datetime, data: dict[str, Any]) -> Event:
    before = mark.extracted.position.to_json() if mark.extracted.position else None
    return Event("manual", now, None, {"act": act, "reason": reason, "from": before, **data})


def _given_up(run: Run | None, now: datetime) -> Run | None:
    if run is None or not run.state.open:
        return run
    return replace(run, state=RunState.SKIPPED, round=None, staged=(), quarantined=(), finished_at=now)


def _demand_reason(reason: str) -> None:
    if not reason.strip():
        raise UsageError("a change by hand needs a reason", hint="say why with --reason")

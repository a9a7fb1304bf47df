"""Putting the mark somewhere by hand: audited, never while somebody packs, never unsafe by accident."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from tidegate.archive.contract import Tools, Watching
from tidegate.archive.mark import Mark
from tidegate.archive.opening import begun, close_off, files_between, first_mark
from tidegate.archive.streams import archive_stream, demand_nobody_packs, demand_own_table
from tidegate.core import transitions
from tidegate.core.errors import UsageError
from tidegate.core.positions import Position
from tidegate.core.watermark import Event
from tidegate.state.hold import hold


@dataclass(frozen=True)
class Adjustment:
    before: datetime
    after: datetime
    passed_over: int
    """Files that are behind the new mark and were not behind the old one."""


def adjust(tools: Tools, to: datetime, *, reason: str, force: bool = False) -> Adjustment:
    """Move the mark. Going back is always safe: what is packed is not packed again."""
    stream = archive_stream(tools.config)
    demand_nobody_packs(tools, stream)
    mark = _known(tools)
    if not (force and reason):
        _demand_behind(
            tools.clock() - mark.lag,
            to,
            hint="choose an earlier date; to go there all the same, add --force and a --reason",
        )
    passed = files_between(tools, mark.archived_until, to)
    if to == mark.archived_until:
        return Adjustment(to, to, 0)
    with hold(tools.store, stream, holder=tools.holder, clock=tools.clock, nonce=tools.token()) as held:
        now = tools.clock()
        if held.watermark is None:
            demand_own_table(tools)
        known = held.watermark or begun(tools, mark, now)
        packed: tuple[Event, ...] = ()
        if known.pending:
            # Its manifest is written; where the mark goes is decided here.
            known, packed = transitions.loaded(known, {segment.key for segment in known.pending}, now)
        known, closed = close_off(tools, known)
        tools.mark.move(mark.archived_until, to)
        said = reason or "by hand"
        moved, by_hand = transitions.move(known, Position.of(to), reason=said, now=now)
        held.commit(moved, [*packed, *closed, *by_hand])
    return Adjustment(mark.archived_until, to, passed)


def _known(tools: Tools) -> Mark:
    mark = tools.mark.read()
    if mark is None:
        raise UsageError("the archive has no mark yet", hint="begin it with `tidegate archive init` or `run`")
    return mark


# --- Where there is none yet --------------------------------------------------------------------------


def begin(
    tools: Tools, watching: Watching, *, column: str | None = None, after: datetime | None = None
) -> Mark:
    """Create the mark: where a column's flags end, after a date, or else where a run would begin."""
    found = tools.mark.read()
    if found is not None:
        raise UsageError(
            f"the archive has begun: it is archived until {found.archived_until:%Y-%m-%d %H:%M:%S}Z",
            hint="move the mark with `tidegate archive adjust`",
        )
    lag_days = tools.config.database.lag_days
    cutoff = tools.clock() - timedelta(days=lag_days)
    if after is not None:
        _demand_behind(cutoff, after, hint="choose an earlier date")
        return tools.mark.begin(Mark(after, lag_days))
    flagged = tools.table.archived_until(column) if column is not None else None
    if flagged is None:
        return tools.mark.begin(first_mark(tools, watching))
    if flagged > cutoff:
        watching.note(
            f"`{column}` is set up to {flagged:%Y-%m-%d %H:%M:%S}Z, where files may still appear: "
            "the archive begins at the cut-off, and what lies between is packed once more"
        )
    return tools.mark.begin(Mark(min(flagged, cutoff), lag_days))


def _demand_behind(cutoff: datetime, to: datetime, *, hint: str) -> None:
    if to > cutoff:
        raise UsageError(
            f"the mark would go past the cut-off, {cutoff:%Y-%m-%d %H:%M:%S}Z: "
            "files that are still to come would never be archived",
            hint=hint,
        )

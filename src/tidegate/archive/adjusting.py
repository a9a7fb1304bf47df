"""Moving the mark by hand: audited, never while somebody packs, and never past what is safe by accident."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tidegate.archive.contract import Tools
from tidegate.archive.mark import Mark
from tidegate.archive.opening import begun, close_off, files_between
from tidegate.archive.streams import archive_stream, demand_nobody_packs, demand_own_table
from tidegate.core import transitions
from tidegate.core.errors import UsageError
from tidegate.core.positions import Position
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
    cutoff = tools.clock() - mark.lag
    if to > cutoff and not (force and reason):
        raise UsageError(
            f"the mark would go past the cut-off, {cutoff:%Y-%m-%d %H:%M:%S}Z: "
            "files that are still to come would never be archived",
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
        if known.pending:
            # Its manifest is written; where the mark goes is decided here.
            known, _ = transitions.loaded(known, {segment.key for segment in known.pending}, now)
        close_off(tools, known.open_run)
        tools.mark.move(mark.archived_until, to)
        said = reason or "by hand"
        held.commit(*transitions.move(known, Position.of(to), reason=said, now=now))
    return Adjustment(mark.archived_until, to, passed)


def _known(tools: Tools) -> Mark:
    mark = tools.mark.read()
    if mark is None:
        raise UsageError("the archive has no mark yet", hint="begin it with `tidegate archive init` or `run`")
    return mark

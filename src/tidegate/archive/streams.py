"""The streams of an archive: one for its mark, one for late files, and one for the share of each worker.

Late files have windows of their own, since their mark is not the archive's. Shares hold no state: they are
leases, and whoever lives holds the lease of what it packs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta

from tidegate.archive.config import ArchiveConfig
from tidegate.archive.contract import Share, Tools, Watching
from tidegate.core.errors import ConfigError, InvariantBroken, LeaseHeld
from tidegate.core.positions import Position
from tidegate.core.watermark import Run, StreamId, Watermark
from tidegate.core.windows import Window
from tidegate.state.contract import Store
from tidegate.state.hold import HeldStream, hold
from tidegate.state.process import known_dead

PIPELINE = "archive"
AS_LONG_AS_IT_TAKES = timedelta(days=365)
"""The archive's own lease is held while a window is listed or closed, and given back by whoever lives."""
_SHORTEST_POLL, _LONGEST_POLL = 0.01, 0.5
_LONGER = 1.2
"""Each wait beside the last one: so that nobody comes later than a fifth of what it has waited already."""


def archive_stream(config: ArchiveConfig) -> StreamId:
    return StreamId(PIPELINE, config.database.table_name)


def late_stream(config: ArchiveConfig) -> StreamId:
    return StreamId(PIPELINE, f"{config.database.table_name}, late")


def stream_of(config: ArchiveConfig, *, late: bool) -> StreamId:
    return late_stream(config) if late else archive_stream(config)


def share_stream(windows: StreamId, share: Share) -> StreamId:
    """Of a worker at the windows of this stream."""
    return StreamId(PIPELINE, f"{windows.name}, {share.name}")


def polls() -> Iterator[float]:
    """How long to wait for others between two looks: hardly at first, since most are nearly done."""
    seconds = _SHORTEST_POLL
    while True:
        yield seconds
        seconds = min(_LONGER * seconds, _LONGEST_POLL)


@contextmanager
def holding(
    tools: Tools, watching: Watching, stream: StreamId, patience: timedelta | None = None
) -> Iterator[HeldStream]:
    """Hold a stream; with patience, because others hold it and give it back."""
    deadline = tools.clock() + (patience or timedelta(0))
    pauses = polls()
    with ExitStack() as stack:
        held = None
        while held is None:
            try:
                held = stack.enter_context(
                    hold(tools.store, stream, holder=tools.holder, clock=tools.clock, nonce=tools.token())
                )
            except LeaseHeld:
                if tools.clock() >= deadline:
                    raise
                watching.wait(next(pauses))
                watching.check()
        yield held


def demand_nobody_packs(tools: Tools, windows: StreamId) -> None:
    """Raise `LeaseHeld` while a worker that may be alive has a share of the windows of this stream."""
    shares = f"{windows.name}, share "
    for stored in tools.store.streams(PIPELINE).streams:
        lease = stored.lease
        if lease is None or not stored.stream.name.startswith(shares):
            continue
        if not lease.expired(tools.clock()) and not known_dead(lease.holder, tools.holder):
            raise LeaseHeld(
                f"{stored.stream} is held by {lease.holder}", hint="let it finish, and run this again"
            )


def demand_own_table(tools: Tools) -> None:
    """Raise if the archive has the windows of another table, or of this one by another name.

    Each name has a lease of its own, so two of them would pack the same files side by side.
    """
    own = {archive_stream(tools.config), late_stream(tools.config)}
    streams = tools.store.streams(PIPELINE).streams
    others = [
        stored.stream for stored in streams if stored.watermark is not None and stored.stream not in own
    ]
    if others:
        raise ConfigError(
            f"the archive was begun for the table `{others[0].name}`, and the configuration says "
            f"`{tools.config.database.table_name}`",
            where=tools.place.where("_tidegate"),
            hint="put database.table_name back (a view may have that name), or choose another "
            "`packer.output_dir`",
        )


# --- What stands in them ------------------------------------------------------------------------------


def behind(store: Store, stream: StreamId, there: datetime) -> Window:
    """Everything behind the mark that the archive has passed; without a low end, if it left nothing out."""
    mark, high = store.read(stream).watermark, Position.of(there)
    lows = [mark.began, *(window.low for window in mark.covered)] if mark is not None else []
    known = [low for low in lows if low is not None]
    if len(known) < len(lows) or not known:
        return Window(None, high)
    return Window(min(*known, high), high)


def files_archived(store: Store, config: ArchiveConfig) -> int:
    """How many files this archive has packed, in all its windows."""
    marks = [store.read(stream_of(config, late=late)).watermark for late in (False, True)]
    return sum(mark.loaded.rows_total for mark in marks if mark is not None)


def is_open(mark: Watermark | None) -> bool:
    """Whether a window was left between its plan and its end."""
    return mark is not None and (mark.open_run is not None or bool(mark.pending))


def committed(held: HeldStream) -> Watermark:
    if held.watermark is None:
        raise InvariantBroken("the stream has no state yet", where=str(held.stream))
    return held.watermark


def open_run(held: HeldStream) -> Run:
    run = committed(held).open_run
    if run is None:
        raise InvariantBroken("no run is under way", where=str(held.stream))
    return run


def moment_of(position: Position | None) -> datetime:
    if position is None or not isinstance(position.values[0], datetime):
        raise InvariantBroken("the window has an end that is no moment")
    return position.values[0]

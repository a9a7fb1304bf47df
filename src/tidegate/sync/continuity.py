"""Whether a stream's state still fits its configuration: a mark means nothing under another cursor."""

from __future__ import annotations

from datetime import date, datetime

from tidegate.config.settings import TableSettings
from tidegate.core.errors import ConfigError
from tidegate.core.positions import Position
from tidegate.core.types import Column, Kind
from tidegate.core.watermark import RunKind, StreamId, Watermark
from tidegate.sync.job import TableJob


def demand_continuity(mark: Watermark, job: TableJob) -> None:
    """Refuse to go on from a mark that was made with another cursor."""
    if mark.open_run is not None and mark.open_run.kind is not job.kind:
        raise ConfigError(
            f"the interrupted run is {mark.open_run.kind.value}, the pipeline now says {job.kind.value}",
            where=str(job.stream),
            hint="put the strategy back for one more sync, or begin again with `tidegate watermark reset`",
        )
    if mark.extracted.position is None and mark.open_run is None:
        return
    if mark.cursor != job.order:
        raise ConfigError(
            f"the mark was made with cursor {_named(mark.cursor)}, the pipeline now says {_named(job.order)}",
            where=str(job.stream),
            hint="put the cursor back, or begin again with `tidegate watermark reset`",
        )
    _demand_same_clock(mark.extracted.position, job)


def demand_loadable(mark: Watermark, settings: TableSettings, stream: StreamId) -> None:
    """Refuse to load as a whole table what was read as its news, and the other way round."""
    wrong = [segment for segment in mark.pending if segment.snapshot is settings.incremental]
    if wrong:
        was = RunKind.SNAPSHOT if wrong[0].snapshot else RunKind.INCREMENTAL
        raise ConfigError(
            f"{len(wrong)} pending files are {was.value}, and the pipeline's strategy is not any more",
            where=str(stream),
            hint="put the strategy back and load them with `tidegate sync --load-only`, "
            "or give them up with `tidegate watermark reset`",
        )


def fits(mark: Watermark, job: TableJob) -> bool:
    """Whether the mark can be compared with positions of the stream as it is now."""
    return mark.cursor == job.order and _other_clock(mark.extracted.position, job) is None


def _demand_same_clock(position: Position | None, job: TableJob) -> None:
    other = _other_clock(position, job)
    if other is not None:
        raise ConfigError(
            f"the mark is a {other[0].value}, and column `{other[1].name}` is {other[1].type.kind.value} now",
            where=str(job.stream),
            hint="set it anew with `tidegate watermark set`, or begin again with `tidegate watermark reset`",
        )


def _other_clock(position: Position | None, job: TableJob) -> tuple[Kind, Column] | None:
    """What the mark is and the column is not.

    A reading of a zoneless clock and an instant cannot be compared, nor turned into each other safely.
    """
    name = job.settings.cursor.timestamp
    if position is None or name is None:
        return None
    column = job.relation.schema.column(name)
    made = _clock_of(position)
    return None if made is column.type.kind else (made, column)


def _clock_of(position: Position) -> Kind:
    match position.values[0]:
        case datetime(tzinfo=None):
            return Kind.TIMESTAMP
        case datetime():
            return Kind.INSTANT
        case date():
            return Kind.DATE
        case _:
            return Kind.INT64


def _named(cursor: tuple[str, ...]) -> str:
    return " + ".join(cursor) or "none"

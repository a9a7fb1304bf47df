"""The committed state of a stream, and its form as JSON.

A watermark holds two marks: `extracted` (source → staging) and `loaded` (staging → target), the segments
between them, and the run that is moving them. It stays small: what has been loaded is history.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from tidegate.core.errors import DamagedRecord, InvariantBroken
from tidegate.core.lossy import Tally
from tidegate.core.positions import Position
from tidegate.core.quality import Findings
from tidegate.core.receipts import Segment
from tidegate.core.shape import demand_shape
from tidegate.core.windows import Chunk, Window, cut

FORMAT = 2


@dataclass(frozen=True, slots=True, order=True)
class StreamId:
    """What has a watermark: one table of one pipeline, one archive, one tracked job."""

    pipeline: str
    name: str

    def __str__(self) -> str:
        return f"{self.pipeline}/{self.name}"


class RunState(StrEnum):
    PLANNED = "planned"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"

    @property
    def open(self) -> bool:
        """Whether the window of such a run still has to be finished."""
        return self in (RunState.PLANNED, RunState.RUNNING, RunState.FAILED)


class RunKind(StrEnum):
    INCREMENTAL = "incremental"
    """Chunks become visible to the target as they are proved."""
    SNAPSHOT = "snapshot"
    """All or nothing: segments become visible together, or never."""
    DIRECT = "direct"
    """Nothing is staged: whoever asked for the window does the work, and says how it ended."""


@dataclass(frozen=True, slots=True)
class Round:
    """The part of a run's window that is cut into chunks at one time, so that state stays bounded."""

    window: Window
    cuts: tuple[Position, ...]
    done: int = 0

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        return cut(self.window, self.cuts)

    @property
    def finished(self) -> bool:
        return self.done == len(self.cuts) + 1


@dataclass(frozen=True, slots=True)
class Run:
    """One attempt to move a stream through a window. Its window never changes."""

    id: str
    number: int
    kind: RunKind
    state: RunState
    window: Window
    progress: Position | None
    started_at: datetime
    round: Round | None = None
    chunks_done: int = 0
    """Chunks of earlier rounds: a chunk's number in the run is this plus its number in the round."""
    staged: tuple[Segment, ...] = ()
    """Segments that are nobody's to load yet: of an unfinished snapshot, or of rows still to be judged."""
    rules: str | None = None
    """The fingerprint of the rules that its rows are judged by; None: they are not."""
    findings: Findings | None = None
    quarantined: tuple[Segment, ...] = ()
    """Files of rows that were put aside, until the run ends."""
    rows_aside: int = 0
    """How many of its rows were put aside when it ended."""
    rows: int = 0
    lossy: Tally = ()
    """Values of its rows that became NULL because they did not fit."""
    lookback: bool = False
    """The window reaches back over rows that earlier runs have read."""
    together: int | None = None
    """How many streams are planned under this run's id, where they belong together: fewer are no plan yet."""
    finished_at: datetime | None = None
    error: str | None = None

    @property
    def chunks_left(self) -> tuple[Chunk, ...]:
        """Those of the round under way that are not proved yet."""
        return self.round.chunks[self.round.done :] if self.round else ()


@dataclass(frozen=True, slots=True)
class Extracted:
    position: Position | None = None
    rows_total: int = 0
    rows_last_run: int = 0
    at: datetime | None = None
    lossy: Tally = ()
    """Values of all these rows that became NULL because they did not fit."""


@dataclass(frozen=True, slots=True)
class Loaded:
    position: Position | None = None
    rows_total: int = 0
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A largest id, and the transactions that were open when it was seen.

    It is a safe ceiling once all of them have ended.
    """

    position: Position
    seen_at: datetime
    open: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Watermark:
    stream: StreamId
    created_at: datetime
    updated_at: datetime
    cursor: tuple[str, ...] = ()
    """The columns the positions are made of: a mark means nothing under another cursor."""
    extracted: Extracted = field(default_factory=Extracted)
    loaded: Loaded = field(default_factory=Loaded)
    pending: tuple[Segment, ...] = ()
    run: Run | None = None
    runs: int = 0
    """The last run's number. Never goes back, not even by a reset."""
    generation: int = 1
    """Part of every ledger key: raised to load the same segments again on purpose."""
    candidates: tuple[Candidate, ...] = ()
    began: Position | None = None
    """Where the unbroken range that ends at `extracted` begins; None: at the beginning."""
    covered: tuple[Window, ...] = ()
    """Ranges that were read apart from it: by backfills, or before the mark was moved by hand."""
    schemas: tuple[tuple[str, Any], ...] = ()
    """The schemas, by fingerprint, of the pending segments and of the last run."""
    schema: str | None = None
    """The fingerprint of the last run's schema."""
    names: tuple[tuple[str, str], ...] = ()
    """Columns that are called otherwise at the target than at the source: once given, a name stays."""
    last_error: str | None = None
    manual: str | None = None
    """Why the mark was last moved by hand, if it was."""

    @property
    def open_run(self) -> Run | None:
        return self.run if self.run is not None and self.run.state.open else None

    @property
    def current_run(self) -> Run:
        """The open run, where there must be one."""
        if self.open_run is None:
            raise InvariantBroken("no run is under way", where=str(self.stream))
        return self.open_run


_OF_EVERY_EVENT = frozenset({"kind", "at", "run_id"})


@dataclass(frozen=True, slots=True)
class Event:
    """A line of a stream's history."""

    kind: str
    at: datetime
    run_id: str | None
    data: dict[str, Any]

    def __post_init__(self) -> None:
        if not _OF_EVERY_EVENT.isdisjoint(self.data):
            raise ValueError(f"an event's data cannot use the names {sorted(_OF_EVERY_EVENT)}")

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "at": self.at.isoformat(), "run_id": self.run_id, **self.data}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Event:
        rest = {key: value for key, value in data.items() if key not in _OF_EVERY_EVENT}
        return cls(data["kind"], datetime.fromisoformat(data["at"]), data["run_id"], rest)


def to_json(mark: Watermark) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "pipeline": mark.stream.pipeline,
        "table_name": mark.stream.name,
        "created_at": mark.created_at.isoformat(),
        "updated_at": mark.updated_at.isoformat(),
        "cursor": list(mark.cursor),
        "extracted": {
            "position": _position(mark.extracted.position),
            "rows_total": mark.extracted.rows_total,
            "rows_last_run": mark.extracted.rows_last_run,
            "at": _moment(mark.extracted.at),
            "lossy": dict(mark.extracted.lossy),
        },
        "loaded": {
            "position": _position(mark.loaded.position),
            "rows_total": mark.loaded.rows_total,
            "at": _moment(mark.loaded.at),
        },
        "pending": [segment.to_json() for segment in mark.pending],
        "run": _run_to_json(mark.run) if mark.run else None,
        "runs": mark.runs,
        "generation": mark.generation,
        "candidates": [
            {"position": c.position.to_json(), "seen_at": c.seen_at.isoformat(), "open": list(c.open)}
            for c in mark.candidates
        ],
        "began": _position(mark.began),
        "covered": [window.to_json() for window in mark.covered],
        "schemas": dict(mark.schemas),
        "schema": mark.schema,
        "names": dict(mark.names),
        "last_error": mark.last_error,
        "manual": mark.manual,
    }


def from_json(data: dict[str, Any]) -> Watermark:
    try:
        mark = _from_json(data)
        demand_shape(mark, Watermark)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedRecord(
            f"the state record cannot be understood: {error!r}",
            where=_named(data),
            hint="restore it with `tidegate watermark import`, or start over with `tidegate watermark reset`",
        ) from error
    return mark


def _named(data: Any) -> str:
    if not isinstance(data, dict):
        return "?"
    return f"{data.get('pipeline', '?')}/{data.get('table_name', '?')}"


def _from_json(data: dict[str, Any]) -> Watermark:
    if data["format"] == 1:
        data = _upgraded(data)
    if data["format"] != FORMAT:
        raise ValueError(f"state format {data['format']!r}, this version reads {FORMAT} and those before")
    extracted, loaded = data["extracted"], data["loaded"]
    return Watermark(
        stream=StreamId(data["pipeline"], data["table_name"]),
        created_at=datetime.fromisoformat(data["created_at"]),
        updated_at=datetime.fromisoformat(data["updated_at"]),
        cursor=_items(data["cursor"]),
        extracted=Extracted(
            position=_read_position(extracted["position"]),
            rows_total=extracted["rows_total"],
            rows_last_run=extracted["rows_last_run"],
            at=_read_moment(extracted["at"]),
            lossy=_tally(extracted),
        ),
        loaded=Loaded(
            position=_read_position(loaded["position"]),
            rows_total=loaded["rows_total"],
            at=_read_moment(loaded["at"]),
        ),
        pending=tuple(Segment.from_json(item) for item in _items(data["pending"])),
        run=None if data["run"] is None else _run_from_json(data["run"]),
        runs=data["runs"],
        generation=data["generation"],
        candidates=tuple(
            Candidate(
                Position.from_json(c["position"]), datetime.fromisoformat(c["seen_at"]), _items(c["open"])
            )
            for c in _items(data["candidates"])
        ),
        began=_read_position(data["began"]),
        covered=tuple(Window.from_json(item) for item in _items(data["covered"])),
        schemas=tuple(data["schemas"].items()),
        schema=data["schema"],
        names=tuple(data["names"].items()),
        last_error=data["last_error"],
        manual=data["manual"],
    )


def _upgraded(data: dict[str, Any]) -> dict[str, Any]:
    """A record of format 1, which knew no names and no rules, and took the last schema for the last run's."""
    schema = next(reversed(data["schemas"]), None)
    run = data["run"]
    if run is not None:
        run = {**run, "rules": None, "findings": None, "quarantined": [], "rows_aside": 0}
    return {**data, "format": FORMAT, "schema": schema, "names": {}, "run": run}


def _run_to_json(run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "number": run.number,
        "kind": run.kind.value,
        "state": run.state.value,
        "window": run.window.to_json(),
        "progress": _position(run.progress),
        "started_at": run.started_at.isoformat(),
        "round": {
            "window": run.round.window.to_json(),
            "cuts": [position.to_json() for position in run.round.cuts],
            "done": run.round.done,
        }
        if run.round
        else None,
        "chunks_done": run.chunks_done,
        "staged": [segment.to_json() for segment in run.staged],
        "rules": run.rules,
        "findings": run.findings.to_json() if run.findings else None,
        "quarantined": [segment.to_json() for segment in run.quarantined],
        "rows_aside": run.rows_aside,
        "rows": run.rows,
        "lossy": dict(run.lossy),
        "lookback": run.lookback,
        "together": run.together,
        "finished_at": _moment(run.finished_at),
        "error": run.error,
    }


def _run_from_json(data: dict[str, Any]) -> Run:
    part = data["round"]
    return Run(
        id=data["id"],
        number=data["number"],
        kind=RunKind(data["kind"]),
        state=RunState(data["state"]),
        window=Window.from_json(data["window"]),
        progress=_read_position(data["progress"]),
        started_at=datetime.fromisoformat(data["started_at"]),
        round=Round(
            Window.from_json(part["window"]),
            tuple(Position.from_json(item) for item in _items(part["cuts"])),
            part["done"],
        )
        if part is not None
        else None,
        chunks_done=data["chunks_done"],
        staged=tuple(Segment.from_json(item) for item in _items(data["staged"])),
        rules=data["rules"],
        findings=None if data["findings"] is None else Findings.from_json(data["findings"]),
        quarantined=tuple(Segment.from_json(item) for item in _items(data["quarantined"])),
        rows_aside=data["rows_aside"],
        rows=data["rows"],
        lossy=_tally(data),
        lookback=data["lookback"],
        together=data.get("together"),
        finished_at=_read_moment(data["finished_at"]),
        error=data["error"],
    )


def _position(position: Position | None) -> list[Any] | None:
    return position.to_json() if position else None


def _read_position(data: list[Any] | None) -> Position | None:
    return None if data is None else Position.from_json(data)


def _items(data: list[Any]) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise ValueError(f"not a list: {data!r}")  # noqa: TRY004 - damage, not a wrong call
    return tuple(data)


def _tally(data: dict[str, Any]) -> Tally:
    """Records from before values were counted have none."""
    return tuple(data.get("lossy", {}).items())


def _moment(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None


def _read_moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)

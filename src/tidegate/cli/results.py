"""What a sync did, for people, and the exit code of several pipelines together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tidegate.core.errors import ConnectError, LeaseHeld, TidegateError, VerificationFailed
from tidegate.core.secrecy import hidden
from tidegate.observe.figures import counted, size, span
from tidegate.observe.terminal import Cell, Terminal, Tone, Toned
from tidegate.sync.result import SyncResult, TableResult, TableStatus


@dataclass(frozen=True)
class NotStarted:
    """A pipeline none of whose tables could begin."""

    pipeline: str
    tables_requested: tuple[str, ...]
    started_at: datetime
    finished_at: datetime
    error: TidegateError
    execution_id: str | None = None

    @property
    def tables(self) -> dict[str, TableResult]:
        return {}

    @property
    def exit_code(self) -> int:
        return self.error.exit_code

    def to_json(self) -> dict[str, Any]:
        empty = SyncResult("", self.pipeline, self.tables_requested, self.started_at, self.finished_at)
        return {
            **empty.to_json(),
            "execution_id": self.execution_id,
            "status": "failed",
            "error": hidden(str(self.error)),
        }


Result = SyncResult | NotStarted


def combined(codes: Sequence[int]) -> int:
    """The worst of them, as one run that had done it all would have ended."""
    bad = {code for code in codes if code}
    if len(bad) == 1 and len(codes) == 1:
        return bad.pop()
    if bad <= {LeaseHeld.exit_code}:
        return LeaseHeld.exit_code if bad else 0
    if bad <= {LeaseHeld.exit_code, VerificationFailed.exit_code}:
        return VerificationFailed.exit_code
    if bad == {ConnectError.exit_code} == set(codes):
        return ConnectError.exit_code
    return 1


_TONES = {
    TableStatus.SUCCESS: Tone.GOOD,
    TableStatus.NOTHING_NEW: Tone.FAINT,
    TableStatus.FAILED: Tone.BAD,
    TableStatus.HELD: Tone.WARN,
}


def show_results(terminal: Terminal, results: Sequence[Result]) -> None:
    if terminal.quiet:
        return
    rows = [_row(result.pipeline, table) for result in results for table in result.tables.values()]
    if rows:
        # A column that would say the same of every table says nothing.
        needless = {"pipeline"} if len(results) == 1 else set()
        if all(row["held back"] == _NONE for row in rows):
            needless.add("held back")
        headings = [heading for heading in rows[0] if heading not in needless]
        terminal.table(headings, [[row[heading] for heading in headings] for row in rows])
    terminal.say(_summary(results), Tone.STRONG)


_NONE = "–"


def _row(pipeline: str, result: TableResult) -> dict[str, Cell]:
    high = result.window.high if result.window else None
    return {
        "pipeline": pipeline,
        "table": result.table,
        "status": Toned(result.status.replace("_", " "), _TONES[result.status]),
        "extracted": f"{result.rows_extracted:,}",
        "loaded": f"{result.rows_loaded:,}",
        "files": f"{result.files_created:,}",
        "size": size(result.bytes) if result.bytes else _NONE,
        "up to": str(high) if high else _NONE,
        "held back": span(result.held_back_seconds) if result.held_back_seconds else _NONE,
        "time": span(result.duration_seconds),
    }


def _summary(results: Sequence[Result]) -> str:
    tables = [table for result in results for table in result.tables.values()]
    extracted = sum(table.rows_extracted for table in tables)
    loaded = sum(table.rows_loaded for table in tables)
    failed = sum(table.status is TableStatus.FAILED for table in tables)
    held = sum(table.status is TableStatus.HELD for table in tables)
    stuck = sum(isinstance(result, NotStarted) for result in results)
    parts = []
    if extracted or loaded:
        parts.append(f"{counted(extracted, 'row')} extracted, {loaded:,} loaded")
    elif not (failed or held or stuck):
        parts.append("nothing new")
    if failed:
        parts.append(f"{counted(failed, 'table')} failed")
    if held:
        parts.append(f"{counted(held, 'table')} held by another run")
    if stuck:
        parts.append(f"{counted(stuck, 'pipeline')} could not start")
    begun, ended = min(r.started_at for r in results), max(r.finished_at for r in results)
    return f"{', '.join(parts)} in {span(ended - begun)}"

"""`sync --dry-run`: the plans, for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tidegate.cli.choosing import print_json
from tidegate.cli.failures import say
from tidegate.cli.invocation import Invocation
from tidegate.cli.results import combined
from tidegate.cli.sync import STDOUT, write_json
from tidegate.config.pipelines import Pipeline
from tidegate.core.errors import TidegateError
from tidegate.core.watermark import StreamId
from tidegate.core.windows import Window
from tidegate.observe.figures import counted, span
from tidegate.observe.terminal import Tone
from tidegate.state.clock import now
from tidegate.sync.library import open_parts, spark_settings
from tidegate.sync.pipeline import Request
from tidegate.sync.preview import TablePlan, preview


def show_plans(
    invocation: Invocation, requests: Sequence[tuple[Pipeline, Request]], json_output: str | None
) -> int:
    documents: list[dict[str, Any]] = []
    codes: list[int] = []
    for pipeline, request in requests:
        plans = _plans(invocation, pipeline, request)
        for plan in plans:
            _show(invocation, pipeline.name, plan)
        failed = {plan.error.exit_code for plan in plans if plan.error}
        codes.append(0 if not failed else failed.pop() if len(failed) == 1 else 1)
        documents.append(
            {"pipeline": pipeline.name, "tables": {plan.table: plan.to_json() for plan in plans}}
        )
    invocation.terminal.say("a dry run: nothing was changed", Tone.STRONG)
    data = documents[0] if len(documents) == 1 else documents
    if json_output == STDOUT:
        print_json(data)
    elif json_output is not None:
        write_json(Path(json_output), data)
    return combined(codes)


def _plans(invocation: Invocation, pipeline: Pipeline, request: Request) -> list[TablePlan]:
    parts = open_parts(pipeline, command="tidegate sync --dry-run")
    try:
        cores = spark_settings(invocation.project).cores
        return preview(pipeline, request, parts=parts, cores=cores, clock=now)
    finally:
        parts.close()


def _show(invocation: Invocation, pipeline: str, plan: TablePlan) -> None:
    terminal = invocation.terminal
    terminal.say(f"{pipeline}/{plan.table}", Tone.STRONG)
    if plan.error is not None:
        _failed(invocation, StreamId(pipeline, plan.table), plan.error)
        return
    for label, text in _facts(plan):
        terminal.say(f"  {label:<11}{text}")
    terminal.say()


def _failed(invocation: Invocation, table: StreamId, error: TidegateError) -> None:
    # Errors may go elsewhere than the plans do, so each names its table.
    say(invocation, error, table)
    invocation.terminal.say()


def _in_words(window: Window) -> str:
    if window.low is None and window.high is None:
        return "the whole table"
    return f"after {window.low or 'the beginning'}, up to {window.high or 'the end'}"


def _facts(plan: TablePlan) -> list[tuple[str, str]]:
    facts = []
    if plan.window is None:
        facts.append(("window", "nothing new to read"))
    else:
        facts.append(("window", _in_words(plan.window)))
        rows = counted(plan.estimated_rows, "row")
        facts.append(("to read", f"about {rows} in {counted(plan.chunks, 'chunk')}"))
    if plan.held_back_by or plan.held_back_seconds:
        by = f" by {plan.held_back_by}" if plan.held_back_by else ""
        facts.append(("held back", f"{span(plan.held_back_seconds)}{by}"))
    if plan.pending_files:
        waiting = f"{counted(plan.pending_rows, 'row')} in {counted(plan.pending_files, 'file')}"
        facts.append(("pending", f"{waiting}, staged and not loaded yet"))
    if plan.target_action:
        facts.append(("target", plan.target_action))
    return [*facts, *(("note", note) for note in plan.notes)]

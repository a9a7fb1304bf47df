"""`tidegate sync`: move what is new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidegate.cli.choosing import (
    FiniteRange,
    chosen_pipelines,
    pipelines_option,
    print_json,
    tables_option,
    write_whole,
)
from tidegate.cli.commands import Command
from tidegate.cli.invocation import Invocation, invocation_of
from tidegate.core.errors import TidegateError, UsageError

if TYPE_CHECKING:
    from tidegate.cli.alerting import Telling
    from tidegate.cli.signals import Stop
    from tidegate.cli.watching import AnnouncedSession, Watched
    from tidegate.config.pipelines import Pipeline
    from tidegate.sync.pipeline import Request, Scope
    from tidegate.sync.result import SyncResult

STDOUT = "-"
_LONGEST_NAME = 500


class SyncCommand(Command):
    """Older scripts say `sync pipeline -p NAME`: the word adds nothing, and is let pass."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args[1:] if args[:1] == ["pipeline"] else args)


def _claim_stdout(ctx: click.Context, _: click.Parameter, value: str | None) -> str | None:
    if value == STDOUT:
        invocation_of(ctx).machine_output = True
    return value


def _name(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not (value.isprintable() and 0 < len(value) <= _LONGEST_NAME):
        raise click.BadParameter(f"expected 1 to {_LONGEST_NAME} characters that can be printed")
    return value


json_output_option = click.option(
    "--json-output",
    is_flag=False,
    flag_value=STDOUT,
    default=None,
    metavar="[FILE]",
    callback=_claim_stdout,
    help="The result as JSON, on standard output or in a file.",
)


def _options(function: Any) -> Any:
    for option in reversed(
        (
            click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after about N rows."),
            click.option(
                "--from",
                "low",
                metavar="TS",
                help="Read a range after this timestamp or id, beside the mark, which stays where it is.",
            ),
            click.option("--to", "high", metavar="TS", help="The range's end, which belongs to it."),
            click.option(
                "--verify-data",
                is_flag=True,
                help="Compare row counts of source and warehouse afterwards; exit 4 if they differ.",
            ),
            click.option("--dry-run", is_flag=True, help="Show what would be done, and change nothing."),
            click.option(
                "--every",
                type=FiniteRange(min=0, min_open=True),
                metavar="SECONDS",
                help="Go on for ever, with a pause of this length between two rounds.",
            ),
            click.option(
                "--refresh-schema",
                is_flag=True,
                help="Look at all tables anew, also those that were looked at within the hour.",
            ),
            click.option(
                "--execution-id",
                metavar="ID",
                callback=_name,
                help="What this run is called in its result; a scheduler's own name for it.",
            ),
            json_output_option,
        )
    ):
        function = option(function)
    return tables_option(function)


@click.command(cls=SyncCommand, name="sync")
@pipelines_option
@_options
@click.option("--extract-only", is_flag=True, help="From source to staging, and no further.")
@click.option("--load-only", is_flag=True, help="From staging to warehouse: only what is pending.")
@click.option("--backup-only", is_flag=True, hidden=True)
@click.option("--redshift-only", is_flag=True, hidden=True)
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    extract_only: bool,
    load_only: bool,
    backup_only: bool,
    redshift_only: bool,
    **options: Any,
) -> int:
    """Move what is new from source to warehouse.

    Each table has a mark. A run freezes a window between the mark and a ceiling below which nothing can
    appear any more, reads it, loads it, and moves the mark. A run that is interrupted loses nothing and
    doubles nothing: run it again.

    \b
    Exit codes:
      0    done, also when there was nothing new
      1    something failed, the rest was done
      2    bad usage or configuration
      3    another run holds a table, and nothing failed
      4    verification found differences
      5    cannot connect
      130  interrupted; the state is intact
    """
    from tidegate.sync.pipeline import Scope

    if (extract_only or backup_only) and (load_only or redshift_only):
        raise click.UsageError("--extract-only and --load-only exclude each other: leave both out to do both")
    scope = Scope.BOTH
    if extract_only or backup_only:
        scope = Scope.EXTRACT
    elif load_only or redshift_only:
        scope = Scope.LOAD
    return _run(invocation_of(ctx), scope, **options)


@click.command(cls=SyncCommand, name="backup", hidden=True)
@pipelines_option
@_options
@click.pass_context
def backup(ctx: click.Context, /, **options: Any) -> int:
    """The old name of `sync --extract-only`."""
    from tidegate.sync.pipeline import Scope

    return _run(invocation_of(ctx), Scope.EXTRACT, **options)


def _run(
    invocation: Invocation,
    scope: Scope,
    *,
    pipelines: Sequence[str],
    tables: Sequence[str],
    limit: int | None,
    low: str | None,
    high: str | None,
    verify_data: bool,
    dry_run: bool,
    every: float | None,
    refresh_schema: bool,
    execution_id: str | None,
    json_output: str | None,
) -> int:
    from tidegate.sync.pipeline import Request

    if execution_id is not None and every is not None:
        raise click.UsageError("--execution-id names one run, and --every makes many")
    _demand_sense(scope, limit, low, high, verify=verify_data)
    if json_output not in (None, STDOUT) and not Path(json_output).absolute().parent.is_dir():
        raise UsageError("there is no such folder to write the result to", where=json_output)
    chosen = _with_tables(chosen_pipelines(invocation, pipelines), tables)
    requests = [
        (pipeline, Request(wanted, scope, limit, low, high, execution_id)) for pipeline, wanted in chosen
    ]
    if dry_run:
        from tidegate.cli.plans import show_plans

        return show_plans(invocation, requests, json_output)
    round_ = Round(
        invocation,
        requests,
        json_output,
        verify=verify_data,
        refresh_schema=refresh_schema,
        repeated=every is not None,
    )
    return _once(round_) if every is None else _for_ever(round_, every)


def _demand_sense(
    scope: Scope, limit: int | None, low: str | None, high: str | None, *, verify: bool
) -> None:
    from tidegate.sync.pipeline import Scope

    ranged = low is not None or high is not None
    if scope is Scope.LOAD and (limit is not None or ranged):
        raise click.UsageError(
            "--load-only loads all that is pending: --limit, --from and --to are for reading"
        )
    if scope is Scope.EXTRACT and verify:
        raise click.UsageError("--verify-data looks into the warehouse, where --extract-only does not go")
    if ranged and limit is not None:
        raise click.UsageError("--from and --to name a range, so --limit has no place beside them")


def _with_tables(
    pipelines: Sequence[Pipeline], tables: Sequence[str]
) -> list[tuple[Pipeline, tuple[str, ...]]]:
    """Which tables are meant in which pipeline: each is looked for in all of them."""
    if not tables or len(pipelines) == 1:
        return [(pipeline, tuple(tables)) for pipeline in pipelines]
    from tidegate.config.spelling import did_you_mean, listed

    asked = [(pipeline, tuple(name for name in tables if _has(pipeline, name))) for pipeline in pipelines]
    for name in tables:
        if not any(name in wanted for _, wanted in asked):
            known = list(dict.fromkeys(table for pipeline in pipelines for table in pipeline.tables))
            raise UsageError(
                f"no pipeline has a table `{name}`{did_you_mean(name, known)}",
                hint=f"there are {listed(known)}",
            )
    return [(pipeline, wanted) for pipeline, wanted in asked if wanted]


def _has(pipeline: Pipeline, name: str) -> bool:
    from tidegate.config.spelling import is_pattern, matches

    if is_pattern(name):
        # What a pattern of the file stands for only the source knows, so such a pipeline is asked.
        return any(matches(name, table) or is_pattern(table) for table in pipeline.tables)
    try:
        pipeline.settings_for(name)
    except UsageError:
        return False
    return True


@dataclass
class Round:
    """All pipelines once."""

    invocation: Invocation
    requests: Sequence[tuple[Pipeline, Request]]
    json_output: str | None
    verify: bool
    refresh_schema: bool = False
    repeated: bool = False
    """One of many: then its JSON is one line."""

    def run(self, session: AnnouncedSession, stop: Stop) -> int:
        from tidegate.cli.alerting import Telling
        from tidegate.cli.results import combined, show_results
        from tidegate.cli.watching import Watched
        from tidegate.observe.logs import LoggedProgress

        terminal = self.invocation.terminal
        with Telling(self.invocation) as telling:
            with terminal.watching() as watcher:
                watched = Watched(stop, watcher, LoggedProgress())
                session.before = [lambda: watched.remark("starting Spark")]
                session.after = [stop.arm]
                results = [self._pipeline(*request, session, watched, telling) for request in self.requests]
            show_results(terminal, results)
        self._write_json([result.to_json() for result in results])
        return combined([result.exit_code for result in results])

    def _pipeline(
        self,
        pipeline: Pipeline,
        request: Request,
        session: AnnouncedSession,
        watched: Watched,
        telling: Telling,
    ) -> Any:
        """One pipeline. What keeps all of its tables from starting does not keep other pipelines from it."""
        from tidegate.cli.results import NotStarted
        from tidegate.state.clock import new_token, now
        from tidegate.sync.alerting import Done
        from tidegate.sync.library import known_schemas, open_parts
        from tidegate.sync.pipeline import sync_pipeline

        started = now()
        try:
            known = known_schemas(pipeline, refresh=self.refresh_schema)
            parts = open_parts(pipeline, command="tidegate sync", known=known)
            try:
                result = sync_pipeline(
                    pipeline,
                    request,
                    parts=parts,
                    session=session,
                    progress=watched,
                    clock=now,
                    token=new_token,
                )
                result = self._verified(result, pipeline, parts) if self.verify else result
                telling.synced(pipeline, Done(result, request.reads, self.verify), parts.store)
                return result
            finally:
                parts.close()
        except TidegateError as error:
            from tidegate.cli.failures import say

            telling.not_started(pipeline, error)
            if isinstance(error, UsageError) and len(self.requests) == 1:
                raise
            say(self.invocation, error)
            return NotStarted(pipeline.name, request.tables, started, now(), error, request.execution_id)

    def _verified(self, result: SyncResult, pipeline: Pipeline, parts: Any) -> SyncResult:
        from tidegate.cli.failures import say
        from tidegate.sync.verifying import verified

        checked = verified(result, pipeline, parts)
        for name, table in checked.tables.items():
            if table.error is not None and result.tables[name].error is None:
                say(self.invocation, table.error)
        return checked

    def _write_json(self, results: list[dict[str, Any]]) -> None:
        """One pipeline is one object, several are a list of them."""
        if self.json_output is None:
            return
        data = results[0] if len(results) == 1 else results
        if self.json_output == STDOUT:
            print_json(data, compact=self.repeated)
        else:
            write_json(Path(self.json_output), data)


def write_json(path: Path, data: Any) -> None:
    import json

    write_whole(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def open_session(invocation: Invocation) -> AnnouncedSession:
    from tidegate.cli.watching import AnnouncedSession
    from tidegate.sync.library import spark_settings

    return AnnouncedSession(spark_settings(invocation.project))


def _once(round_: Round) -> int:
    from tidegate.cli.signals import stopping

    with stopping(gently=False) as stop:
        return round_.run(open_session(round_.invocation), stop)


def _for_ever(round_: Round, pause: float) -> int:
    """Rounds with a pause between them and one warm session, until a signal. The last round's code counts."""
    from tidegate.cli.signals import stopping

    session = open_session(round_.invocation)
    with stopping(gently=True) as stop:
        while True:
            code = round_.run(session, stop)
            round_.invocation.terminal.say(f"next round in {pause:g} s; Ctrl-C ends")
            if stop.wait(pause):
                return code

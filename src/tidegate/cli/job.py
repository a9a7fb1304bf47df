"""`tidegate job`: fill a temporary table, move it on, and empty it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidegate.cli.choosing import print_json
from tidegate.cli.commands import Group
from tidegate.cli.invocation import Invocation, invocation_of
from tidegate.cli.sync import STDOUT, json_output_option, open_session, write_json
from tidegate.core.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.cli.signals import Stop
    from tidegate.config.pipelines import Pipeline
    from tidegate.sync.errand import JobResult
    from tidegate.sync.parts import Parts
    from tidegate.sync.pipeline import Request
    from tidegate.sync.result import SyncResult


@click.group(cls=Group, name="job")
def command() -> None:
    """Fill a temporary table, move it on, and empty it.

    A job is the `job:` block of a pipeline's file.
    """


@command.command()
@click.argument("name")
@click.option("--sync-only", is_flag=True, help="Do not download: go on with what is there.")
@json_output_option
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGS]…")
@click.pass_context
def run(
    ctx: click.Context,
    /,
    *,
    name: str,
    sync_only: bool,
    json_output: str | None,
    arguments: Sequence[str],
) -> int:
    """Run the job of the pipeline NAME; ARGS go to its download command.

    \b
    1. run the download command
    2. sync the temporary tables
    3. compare the rows in the source, those extracted, and those in the target
    4. only if all agree: delete the temporary rows, reset the marks, clean staging

    Any difference leaves everything in place and exits 4. A job that was interrupted is made whole by running
    it again.
    """
    invocation = invocation_of(ctx)
    pipeline = invocation.project.pipeline(name)
    download = None if sync_only else pipeline.demanded_job.download
    if arguments and download is None:
        raise click.UsageError("ARGS go to the download command, and none is run")
    return _Call(invocation, pipeline, json_output).run(tuple(arguments), sync_only=sync_only)


@dataclass
class _Call:
    invocation: Invocation
    pipeline: Pipeline
    json_output: str | None

    def run(self, arguments: Sequence[str], *, sync_only: bool) -> int:
        """Whatever happens, the result says how far it came, and receivers of alerts hear how it ended."""
        from tidegate.cli.alerting import Telling
        from tidegate.cli.failures import say
        from tidegate.cli.signals import stopping
        from tidegate.state.clock import now
        from tidegate.sync.errand import JobResult

        result, failure = JobResult(self.pipeline.name, now()), None
        with Telling(self.invocation) as telling:
            try:
                with stopping(gently=False) as stop:
                    self._errand(arguments, result, stop, sync_only=sync_only)
            except TidegateError as error:
                failure = error
            telling.job_ended(self.pipeline, failure)
            self._show(result)
            if failure is not None:
                say(self.invocation, failure)
        self._write(result.to_json(failure, now()))
        return failure.exit_code if failure is not None else 0

    def _errand(self, arguments: Sequence[str], result: JobResult, stop: Stop, *, sync_only: bool) -> None:
        from tidegate.state.clock import new_token, now
        from tidegate.sync.errand import Errand, download_of
        from tidegate.sync.library import open_parts
        from tidegate.sync.temporary import temporary_of

        parts = open_parts(self.pipeline, command="tidegate job")
        try:
            errand = Errand(
                temporary_of(self.pipeline, parts, now, new_token),
                None if sync_only else download_of(self.pipeline),
                lambda request: self._sync(request, parts, stop),
                self.invocation.terminal.say,
            )
            errand.run(arguments, result)
        finally:
            parts.close()

    def _sync(self, request: Request, parts: Parts, stop: Stop) -> SyncResult:
        from tidegate.cli.results import show_results
        from tidegate.cli.watching import Watched
        from tidegate.observe.logs import LoggedProgress
        from tidegate.state.clock import new_token, now
        from tidegate.sync.pipeline import sync_pipeline

        session = open_session(self.invocation)
        with self.invocation.terminal.watching() as watcher:
            watched = Watched(stop, watcher, LoggedProgress())
            session.before = [lambda: watched.remark("starting Spark")]
            session.after = [stop.arm]
            result = sync_pipeline(
                self.pipeline,
                request,
                parts=parts,
                session=session,
                progress=watched,
                clock=now,
                token=new_token,
            )
        show_results(self.invocation.terminal, [result])
        return result

    def _show(self, result: JobResult) -> None:
        say = self.invocation.terminal.say
        for one in result.finished_first:
            say(f"{one.table}: finished what an earlier run had begun, {one.deleted:,} rows deleted")
        for count in result.counts:
            say(
                f"{count.table}: {count.source:,} rows in the source, {count.extracted:,} extracted, "
                f"{count.target:,} in the target"
                + (f"; {count.newer:,} newer ones are for the next run" if count.newer else "")
            )
        for one in result.cleaned:
            stay = one.verified - one.deleted
            changed = f"; {stay:,} had changed meanwhile and stay" if stay else ""
            say(f"{one.table}: {one.deleted:,} temporary rows deleted{changed}")

    def _write(self, data: dict[str, Any]) -> None:
        if self.json_output == STDOUT:
            print_json(data)
        elif self.json_output is not None:
            write_json(Path(self.json_output), data)

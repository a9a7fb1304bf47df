"""`tidegate archive`: files that a table lists, packed into shards, one update for a window."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidegate.cli.archive_options import config_of, config_option, tools_of
from tidegate.cli.archive_shards import compare, extract, verify
from tidegate.cli.choosing import FiniteRange, json_option, print_json
from tidegate.cli.commands import Group
from tidegate.cli.invocation import Invocation, invocation_of
from tidegate.core.errors import UsageError

if TYPE_CHECKING:
    from datetime import datetime

    from tidegate.archive.contract import Tools

_METRICS_PORT = 9108


class ArchiveGroup(Group):
    """`migrate` is what `run` was called in an older tool."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, "run" if cmd_name == "migrate" else cmd_name)


@click.group(cls=ArchiveGroup, name="archive")
def command() -> None:
    """Pack files that a table lists into immutable shards.

    A window of files costs one UPDATE of one row, however many files it has. The configuration is one file,
    named with --config; no project folder is needed.
    """


# --- run ------------------------------------------------------------------------------------------------


@command.command(name="run")
@config_option
@click.option(
    "--mode",
    type=click.Choice(["single", "continuous"]),
    default="single",
    show_default=True,
    help="One cycle, or cycle after cycle until a signal.",
)
@click.option(
    "--interval",
    type=FiniteRange(min=0, min_open=True),
    default=3600.0,
    show_default="3600",
    metavar="SECONDS",
    help="Between two cycles.",
)
@click.option(
    "--workers", type=click.IntRange(min=1), default=1, metavar="N", help="How many share a window."
)
@click.option(
    "--worker-id", type=click.IntRange(min=0), default=0, metavar="I", help="Which one this is, from 0."
)
@click.option("--late", is_flag=True, help="Pack files that appeared behind the mark; the mark stays.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help=f"Where continuous mode serves /metrics and /healthz. [default: {_METRICS_PORT}]",
)
@click.option(
    "--metrics-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write metrics to this file after each cycle.",
)
@json_option
@click.pass_context
def run(
    ctx: click.Context,
    /,
    *,
    config_file: Path,
    mode: str,
    interval: float,
    workers: int,
    worker_id: int,
    late: bool,
    metrics_port: int | None,
    metrics_file: Path | None,
    as_json: bool,
) -> int:
    """Archive what lies between the mark and the cut-off.

    The files of the window are packed into shards, every shard is read back, and then the mark moves. A run
    that is interrupted loses nothing and doubles nothing: run it again.
    """
    if worker_id >= workers:
        raise click.UsageError(
            f"--worker-id counts from 0, so of {workers} workers the last is {workers - 1}"
        )
    invocation = invocation_of(ctx)
    config = config_of(invocation, config_file)
    from tidegate.archive.contract import Share
    from tidegate.archive.library import spark_settings
    from tidegate.cli.archiving import Rounds
    from tidegate.cli.watching import AnnouncedSession

    rounds = Rounds(
        invocation,
        config,
        Share(worker_id, workers),
        AnnouncedSession(spark_settings(config)),
        textfile=metrics_file or config.metrics.textfile,
        late=late,
        as_json=as_json,
    )
    if mode == "single":
        return rounds.once()
    port = metrics_port if metrics_port is not None else config.metrics.port
    return rounds.for_ever(interval, _METRICS_PORT if port is None else port)


# --- stats ----------------------------------------------------------------------------------------------


@command.command()
@config_option
@click.option("--late", is_flag=True, help="Look for files behind the mark that no shard holds.")
@json_option
@click.pass_context
def stats(ctx: click.Context, /, *, config_file: Path, late: bool, as_json: bool) -> None:
    """Show what a run would archive, and write nothing."""
    with tools_of(ctx, config_file, "tidegate archive stats") as (invocation, tools, watching):
        if late:
            _show_late(invocation, tools, as_json=as_json)
            return
        from tidegate.archive.statistics import statistics

        found = statistics(tools, watching)
        if as_json:
            print_json(found.to_json())
            return
        from tidegate.observe.figures import counted, moment, size, span

        rows = [
            ("archived until", moment(found.archived_until) + ("" if found.begun else " (not begun)")),
            ("cut-off", f"{moment(found.target_cutoff)}, {counted(found.lag_days, 'day')} ago"),
            ("behind by", span(found.lag_seconds)),
            ("files pending", f"{found.files_pending:,}"),
            ("about", "–" if found.bytes_pending is None else size(found.bytes_pending)),
            ("would take", "–" if found.seconds_estimated is None else span(found.seconds_estimated)),
            ("files archived", f"{found.files_total:,} in {size(found.bytes_stored_total)}"),
        ]
        for label, value in rows:
            invocation.terminal.show(f"{label:<15} {value}")
        if found.files_without_date:
            missing = counted(found.files_without_date, "row")
            invocation.terminal.warn(f"{missing} without a date: in no window, and never archived")


def _show_late(invocation: Invocation, tools: Tools, *, as_json: bool) -> None:
    from tidegate.archive.statistics import late_files, left_out
    from tidegate.observe.figures import counted

    found = [
        {
            "uid": row.uid,
            "created_at": row.created_at.isoformat(),
            "location": (row.location or b"").decode(errors="backslashreplace"),
        }
        for row in late_files(tools)
    ]
    older = left_out(tools)
    if as_json:
        print_json({"files_late": len(found), "files_left_out": older, "files": found})
        return
    for row in found:
        invocation.terminal.show(f"{row['created_at']}  {row['uid']}  {row['location']}")
    if found:
        invocation.terminal.say(
            f"{counted(len(found), 'late file')}; `tidegate archive run --late` packs them"
        )
    else:
        invocation.terminal.say("no late files")
    if older:
        said = counted(older, "file")
        invocation.terminal.say(f"{said} older than the beginning of the archive: left out, and never late")


# --- adjust, init ---------------------------------------------------------------------------------------


def _moment(_ctx: click.Context, _param: click.Parameter, value: str | None) -> datetime | None:
    from datetime import UTC, datetime

    if value is None:
        return None
    try:
        found = datetime.fromisoformat(value.strip())
    except ValueError:
        raise click.BadParameter("write a date such as 2024-12-01 or 2024-12-01T12:00:00Z") from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


@command.command()
@config_option
@click.option("--days-offset", type=float, metavar="DAYS", help="Move by so many days; negative goes back.")
@click.option(
    "--set-date", callback=_moment, metavar="DATE", help="Move to this date, in UTC unless it says so."
)
@click.option("--force", is_flag=True, help="Go past the cut-off; needs a --reason.")
@click.option("--reason", default="", metavar="TEXT", help="Why; kept in the history.")
@click.pass_context
def adjust(
    ctx: click.Context,
    /,
    *,
    config_file: Path,
    days_offset: float | None,
    set_date: datetime | None,
    force: bool,
    reason: str,
) -> None:
    """Move the mark by hand.

    Backwards, the files behind it are looked at again, and what is in a shard stays there. Forwards, files
    are passed over: `tidegate archive stats --late` finds them.
    """
    from datetime import timedelta

    if (days_offset is None) == (set_date is None):
        raise click.UsageError("give --days-offset or --set-date")
    if force and not reason.strip():
        raise click.UsageError("--force needs a --reason")
    with tools_of(ctx, config_file, "tidegate archive adjust") as (invocation, tools, _):
        from tidegate.archive.adjusting import adjust as move
        from tidegate.observe.figures import counted, moment

        to = set_date
        if to is None:
            mark = tools.mark.read()
            if mark is None:
                raise UsageError("the archive has no mark yet", hint="begin it with `tidegate archive init`")
            try:
                to = mark.archived_until + timedelta(days=days_offset or 0.0)
            except (OverflowError, ValueError):  # too many of them, or no number
                raise UsageError("there is no such date", hint="choose another --days-offset") from None
        done = move(tools, to, reason=reason, force=force)
        invocation.terminal.say(f"archived until {moment(done.after)}, was {moment(done.before)}")
        if done.passed_over:
            passed = counted(done.passed_over, "file")
            invocation.terminal.warn(
                f"{passed} passed over; `tidegate archive run --late` would archive them"
            )


@command.command()
@config_option
@click.option(
    "--from-column",
    metavar="COLUMN",
    help="Begin where the rows end that have this flag set without a gap.",
)
@click.option("--set-date", callback=_moment, metavar="DATE", help="Begin after this date.")
@click.pass_context
def init(
    ctx: click.Context, /, *, config_file: Path, from_column: str | None, set_date: datetime | None
) -> None:
    """Create the table of the mark, and the mark."""
    if from_column is not None and set_date is not None:
        raise click.UsageError("--from-column and --set-date exclude each other")
    with tools_of(ctx, config_file, "tidegate archive init") as (invocation, tools, watching):
        from tidegate.archive.adjusting import begin
        from tidegate.observe.figures import moment

        begun = begin(tools, watching, column=from_column, after=set_date)
        invocation.terminal.say(f"archived until {moment(begun.archived_until)}, lag {begun.lag_days} days")


# --- mark-archived -----------------------------------------------------------------------------


@command.command(name="mark-archived")
@config_option
@click.option(
    "--batch", type=click.IntRange(1, 100_000), default=1000, show_default=True, help="Rows at a time."
)
@click.pass_context
def mark_archived(ctx: click.Context, /, *, config_file: Path, batch: int) -> int:
    """Set the `archived` column of files that lie in shards.

    In small transactions, without waiting for rows that others hold: those come the next time.
    """
    from tidegate.cli.signals import stopping

    with (
        stopping(gently=True) as stop,
        tools_of(ctx, config_file, "tidegate archive mark-archived", stop) as (invocation, tools, watching),
    ):
        from tidegate.archive.marking import Marking
        from tidegate.observe.figures import counted

        marked = Marking(tools, watching, batch).run()
        invocation.terminal.say(f"{counted(marked.rows, 'row')} marked, {marked.files:,} looked at")
        if marked.locked:
            locked = counted(marked.locked, "row")
            invocation.terminal.warn(f"{locked} held by other transactions; run this again to mark them")
            return 1
    return 0


for _other in (verify, extract, compare):
    command.add_command(_other)

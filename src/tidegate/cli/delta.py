"""`tidegate delta`: version ranges of Delta tables, planned, processed once, recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from tidegate.cli.choosing import completed, json_option, print_json, print_json_list, write_whole
from tidegate.cli.commands import Group
from tidegate.cli.invocation import Invocation, invocation_of
from tidegate.core.errors import UsageError

if TYPE_CHECKING:
    from tidegate.delta.library import DeltaPlans
    from tidegate.delta.plan import Plan
    from tidegate.spark.session import LazySession

F = TypeVar("F", bound=Callable[..., Any])


@click.group(cls=Group, name="delta")
def command() -> None:
    """Follow Delta tables: plan ranges of their versions, process each once, and remember it.

    While a plan is open it is the only one: planning again shows the same ranges. Planning needs no Spark.
    """


def _complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return completed(lambda: invocation_of(ctx).project.deltas, incomplete)


def pipeline_option(function: F) -> F:
    return click.option(
        "-p",
        "--pipeline",
        metavar="NAME",
        shell_complete=_complete,
        help="The pipeline, by its name or its file's name. [default: the only one of kind delta]",
    )(function)


def run_option(function: F) -> F:
    return click.option("--run", "run_id", metavar="ID", help="The plan. [default: the one that is open]")(
        function
    )


@command.command()
@pipeline_option
@click.option(
    "--rebaseline",
    multiple=True,
    metavar="UPSTREAM",
    help="Read this upstream whole again, from its newest version on. May be given several times.",
)
@json_option
@click.pass_context
def plan(ctx: click.Context, /, *, pipeline: str | None, rebaseline: Sequence[str], as_json: bool) -> int:
    """Plan what is new, or show the plan that is open already."""
    invocation = invocation_of(ctx)
    with opened(invocation, pipeline) as plans:
        made = plans.prepare(rebaseline=rebaseline)
    tell(invocation, made, as_json=as_json)
    return 1 if made.status == "FAILED" else 0


@command.command()
@pipeline_option
@click.option("--resume", is_flag=True, help="Take up a plan that was left open, whatever `on_planned` says.")
@json_option
@click.pass_context
def run(ctx: click.Context, /, *, pipeline: str | None, resume: bool, as_json: bool) -> int:
    """Process the plan that is open, then plan what is new and process that.

    The target has every version once, however often this is interrupted and run again.
    """
    from tidegate.delta.running import processing_of

    invocation = invocation_of(ctx)
    session = _session(invocation)
    with opened(invocation, pipeline, session) as plans:
        done = processing_of(plans, session, invocation.terminal.say).run(resume=resume or None)
    tell(invocation, done, as_json=as_json)
    return 1 if done.status == "FAILED" else 0


@command.command()
@pipeline_option
@json_option
@click.pass_context
def show(ctx: click.Context, /, *, pipeline: str | None, as_json: bool) -> None:
    """Show the plan that is open, or else the last one."""
    invocation = invocation_of(ctx)
    with opened(invocation, pipeline) as plans:
        found = plans.current_plan() or plans.last_plan()
    if found is None:
        print_json(None) if as_json else invocation.terminal.say("nothing was ever planned")
        return
    tell(invocation, found, as_json=as_json)


@command.command()
@pipeline_option
@run_option
@click.option("--records", type=click.IntRange(0), default=0, help="How many records were processed.")
@json_option
@click.pass_context
def complete(
    ctx: click.Context, /, *, pipeline: str | None, run_id: str | None, records: int, as_json: bool
) -> None:
    """Record that the plan was processed: its ranges are done."""
    invocation = invocation_of(ctx)
    with opened(invocation, pipeline) as plans:
        done = plans.complete(_meant(plans, run_id), records=records)
    tell(invocation, done, as_json=as_json)


@command.command()
@pipeline_option
@run_option
@click.option("--error", required=True, metavar="TEXT", help="What went wrong.")
@json_option
@click.pass_context
def fail(
    ctx: click.Context, /, *, pipeline: str | None, run_id: str | None, error: str, as_json: bool
) -> None:
    """Record that the plan failed: its ranges stay, for the next run."""
    invocation = invocation_of(ctx)
    with opened(invocation, pipeline) as plans:
        failed = plans.fail(_meant(plans, run_id), error)
    tell(invocation, failed, as_json=as_json)


@command.command()
@pipeline_option
@run_option
@json_option
@click.pass_context
def retry(ctx: click.Context, /, *, pipeline: str | None, run_id: str | None, as_json: bool) -> None:
    """Plan what failed once more: the same ranges, with the error kept until it has gone well."""
    invocation = invocation_of(ctx)
    with opened(invocation, pipeline) as plans:
        again = plans.retry(run_id)
    tell(invocation, again, as_json=as_json)


@command.command()
@pipeline_option
@click.option("--limit", type=click.IntRange(1), help="Only the newest lines.")
@json_option
@click.pass_context
def history(ctx: click.Context, /, *, pipeline: str | None, limit: int | None, as_json: bool) -> None:
    """Show every plan and how it went."""
    invocation = invocation_of(ctx)
    with opened(invocation, pipeline) as plans:
        lines = plans.history(limit)
    if as_json:
        print_json_list(lines)
        return
    headings = ["at", "upstream", "event", "run", "versions", ""]
    invocation.terminal.table(headings, [_line(line) for line in lines])


@command.command()
@pipeline_option
@click.option(
    "--textfile",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also write what was found as metrics, for the textfile collector of Prometheus.",
)
@json_option
@click.pass_context
def check(ctx: click.Context, /, *, pipeline: str | None, textfile: Path | None, as_json: bool) -> int:
    """Look for plans that are stuck, runs that are missing and failures in a row; exit 1 if there are any.

    Whoever is to be told of alerts is told, once.
    """
    from tidegate.cli.alerting import Telling
    from tidegate.delta.checking import figures, look_at
    from tidegate.state.clock import now

    invocation = invocation_of(ctx)
    at = now()
    with opened(invocation, pipeline) as plans, Telling(invocation) as telling:
        seen = plans.seen()
        look = look_at(plans.pipeline, seen, plans.settings.limits, at)
        if plans.config is not None:
            telling.looked(plans.config, look)
    if textfile is not None:
        write_whole(textfile, figures(plans.pipeline, seen, look, at))
    problems = [{"upstream": c.stream, "kind": c.kind.value, "message": c.message} for c in look.found]
    if as_json:
        print_json({"pipeline": plans.pipeline, "at": at.isoformat(), "problems": problems})
    for problem in problems:
        invocation.terminal.warn(f"{problem['upstream']}: {problem['kind']}: {problem['message']}")
    if not problems:
        invocation.terminal.say("all is well")
    return 1 if problems else 0


# --- What they share -------------------------------------------------------------


@contextmanager
def opened(
    invocation: Invocation, name: str | None, session: LazySession | None = None
) -> Iterator[DeltaPlans]:
    """The plans of the pipeline that is meant. Spark is asked only where a catalog knows its tables."""
    from tidegate.delta.library import DeltaPlans
    from tidegate.spark.catalog import SparkCatalog

    catalog = SparkCatalog(session or _session(invocation))
    project = invocation.project
    chosen = project.named(name) if name else _only(project.deltas)
    with DeltaPlans(chosen, project=project, command="tidegate delta", catalog=catalog) as plans:
        yield plans


def _session(invocation: Invocation) -> LazySession:
    from tidegate.cli.watching import AnnouncedSession
    from tidegate.spark.delta import with_delta
    from tidegate.sync.library import spark_settings

    session = AnnouncedSession(with_delta(spark_settings(invocation.project)))
    session.before = [lambda: invocation.terminal.say("starting Spark")]
    return session


def _only(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    if not names:
        raise UsageError("the project has no pipeline of kind delta", hint="write one in config/pipelines/")
    raise UsageError("name the pipeline with -p", hint=f"there are: {', '.join(names)}")


def _meant(plans: DeltaPlans, run_id: str | None) -> str | None:
    if run_id is not None:
        return run_id
    found = plans.current_plan()
    if found is None:
        raise UsageError("no plan is open", where=plans.pipeline, hint="`tidegate delta plan` makes one")
    return found.run_id


def tell(invocation: Invocation, plan: Plan, *, as_json: bool) -> None:
    if as_json:
        print_json(plan.to_json())
        return
    terminal = invocation.terminal
    if plan.run_id is None and plan.status != "FAILED":
        terminal.say("nothing new")
    else:
        terminal.say(f"plan {plan.run_id or 'none'}: {plan.status}")
    shown = [upstream for upstream in plan.upstreams if upstream.status != "SKIPPED"]
    if shown:
        headings = ["upstream", "versions", "reads", "status", "records", "schema"]
        terminal.table(headings, [_row(upstream.to_json()) for upstream in shown])
    for upstream in shown:
        if upstream.error_message:
            terminal.warn(f"{upstream.name}: {upstream.error_message}")
    for note in plan.notes:
        terminal.say(note)


def _row(facts: dict[str, Any]) -> list[str]:
    start, end = facts["start_version"], facts["end_version"]
    records = facts["records_processed"]
    return [
        facts["name"],
        "–" if end is None else f"{start} to {end}",
        facts["reads"] or "–",
        facts["status"],
        "–" if records is None else f"{records:,}",
        facts["schema_version"] or "–",
    ]


def _line(line: dict[str, Any]) -> list[str]:
    window = line.get("window") or {}
    low, high = window.get("low"), window.get("high")
    versions = f"{low[0] + 1 if low else 0} to {high[0]}" if high else "–"
    said = line.get("error") or line.get("reason") or ", ".join(line.get("changes", ()))
    return [line["at"][:19], line["upstream"], line["kind"], line["run_id"] or "–", versions, said or ""]

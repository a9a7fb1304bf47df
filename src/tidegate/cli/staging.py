"""`tidegate staging`: look at staged files, and clean up. What is pending is never touched."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from tidegate.cli.choosing import (
    chosen_pipelines,
    confirm,
    json_option,
    pipelines_option,
    print_json_list,
    tables_option,
    yes_option,
)
from tidegate.cli.commands import Group
from tidegate.cli.invocation import Invocation, invocation_of

if TYPE_CHECKING:
    from tidegate.config.pipelines import Pipeline
    from tidegate.core.watermark import StreamId
    from tidegate.staging.contract import Staging
    from tidegate.sync.staged import Cleaning, Listed, ObjectState, Selection, Totals, Wanted

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@click.group(cls=Group, name="staging")
def command() -> None:
    """Look at staged files, and clean up.

    \b
    pending    waits to be loaded; never touched
    in flight  of a run that is not finished; never touched
    loaded     is in the warehouse
    orphaned   of a run that is over, and nothing refers to it
    foreign    of no run that this project knows; never touched
    """


def _age(_ctx: click.Context, _param: click.Parameter, value: str | None) -> timedelta | None:
    if value is None:
        return None
    found = re.fullmatch(r"(\d+)\s*([smhdw])", value.strip())
    if not found:
        raise click.BadParameter("write a number and a unit, such as 12h or 7d")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def _filters(function: Any) -> Any:
    for option in (
        click.option("--orphaned", is_flag=True, help="Only orphaned files."),
        click.option("--loaded", is_flag=True, help="Only loaded files."),
        click.option(
            "--older-than", callback=_age, metavar="AGE", help="Only files older than this, e.g. 7d."
        ),
        tables_option,
        pipelines_option,
    ):
        function = option(function)
    return function


@command.command(name="list")
@_filters
@json_option
@click.pass_context
def list_(
    ctx: click.Context,
    /,
    *,
    pipelines: Sequence[str],
    tables: Sequence[str],
    older_than: timedelta | None,
    loaded: bool,
    orphaned: bool,
    as_json: bool,
) -> None:
    """List staged files and what becomes of them."""
    from tidegate.sync.staged import ObjectState

    invocation = invocation_of(ctx)
    states = _states(loaded=loaded, orphaned=orphaned) or frozenset(ObjectState)
    wanted = _wanted(invocation, pipelines, tables, states, older_than)
    found = (item for _, items in _listed(invocation, pipelines) for item in items if wanted.asks_for(item))
    if as_json:
        print_json_list(map(_json, found))
    else:
        _show(invocation, found)


def _show(invocation: Invocation, found: Iterable[Listed]) -> None:
    """As tables, one after another: nobody waits for the last of many files to see the first."""
    from tidegate.observe.figures import moment, size
    from tidegate.staging.pages import pages
    from tidegate.sync.staged import Totals

    totals = Totals()
    for page in pages(found):
        rows = [
            [
                item.state.value,
                str(item.stream or "–"),
                size(item.object.bytes) if item.unfinished is None else "–",
                moment(item.object.modified),
                _name(item),
            ]
            for item in page
        ]
        invocation.terminal.table(["state", "table", "size", "written", "file"], rows)
        for item in page:
            totals.add(item)
    invocation.terminal.say(_in_words(totals))


@command.command()
@_filters
@yes_option
@json_option
@click.pass_context
def clean(
    ctx: click.Context,
    /,
    *,
    pipelines: Sequence[str],
    tables: Sequence[str],
    older_than: timedelta | None,
    loaded: bool,
    orphaned: bool,
    yes: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Delete files that are loaded or orphaned, after showing them and asking."""
    from tidegate.sync.staged import ObjectState, Selection, Totals

    invocation = invocation_of(ctx)
    states = _states(loaded=loaded, orphaned=orphaned) or frozenset(
        {ObjectState.LOADED, ObjectState.ORPHANED}
    )
    wanted = _wanted(invocation, pipelines, tables, states, older_than)
    totals = Totals()
    with ExitStack() as opened:
        chosen: list[tuple[Staging, Selection]] = []
        for staging, items in _listed(invocation, pipelines):
            selection = opened.enter_context(closing(Selection()))
            chosen.append((staging, selection))
            for item in filter(wanted.may_go, items):
                selection.add(item)
                totals.add(item)
                if not as_json:
                    invocation.terminal.say(f"{item.state.value:<9} {_name(item)}")
        if totals.count:
            confirm(f"Delete {_in_words(totals)}?", yes=yes or force)
        done = (cleaned for staging, selection in chosen for cleaned in _delete(staging, selection))
        if as_json:
            print_json_list(_json(item) | {"deleted": gone} for item, gone in _each(done))
        elif totals.count:
            _report(invocation, done)
        else:
            invocation.terminal.say("there is nothing to delete")


def _delete(staging: Staging, selection: Selection) -> Iterator[Cleaning]:
    from tidegate.state.clock import new_token, now
    from tidegate.state.process import this_process
    from tidegate.sync.staged import delete

    holder = this_process("tidegate staging clean")
    return delete(selection, staging, holder=holder, clock=now, token=new_token)


def _each(done: Iterable[Cleaning]) -> Iterator[tuple[Listed, bool]]:
    for cleaned in done:
        yield from ((item, True) for item in cleaned.deleted)
        yield from ((item, False) for item in cleaned.kept)


def _report(invocation: Invocation, done: Iterable[Cleaning]) -> None:
    from tidegate.observe.figures import counted, size

    deleted = freed = 0
    kept: Counter[StreamId] = Counter()
    try:
        for cleaned in done:
            deleted += len(cleaned.deleted)
            freed += sum(item.object.bytes for item in cleaned.deleted)
            kept[cleaned.stream] += len(cleaned.kept)
    finally:  # also when some could not be deleted: what is gone is gone
        invocation.terminal.say(f"{counted(deleted, 'file')} deleted, {size(freed)} freed")
    for stream in sorted(stream for stream, count in kept.items() if count):
        left = f"{counted(kept[stream], 'file')} of {stream} kept"
        invocation.terminal.warn(f"{left}: a run holds the table, or refers to them again")


def _states(*, loaded: bool, orphaned: bool) -> frozenset[ObjectState]:
    from tidegate.sync.staged import ObjectState

    chosen = {ObjectState.LOADED: loaded, ObjectState.ORPHANED: orphaned}
    return frozenset(state for state, wanted in chosen.items() if wanted)


def _listed(invocation: Invocation, names: Sequence[str]) -> Iterator[tuple[Staging, Iterator[Listed]]]:
    """Staging areas of the chosen pipelines, judged by the stores of *all* pipelines that use them."""
    from tidegate.state.opening import open_store
    from tidegate.sync.library import open_staging
    from tidegate.sync.staged import list_staged

    areas: dict[str, Pipeline] = {}
    for pipeline in chosen_pipelines(invocation, names):
        areas.setdefault(pipeline.staging_name, pipeline)
    all_pipelines = chosen_pipelines(invocation, ())
    for name, pipeline in areas.items():
        stores = {other.state_name: other.state for other in all_pipelines if other.staging_name == name}
        staging = open_staging(pipeline.staging)
        yield staging, list_staged(staging, [open_store(state) for state in stores.values()])


def _wanted(
    invocation: Invocation,
    pipelines: Sequence[str],
    tables: Sequence[str],
    states: frozenset[ObjectState],
    older_than: timedelta | None,
) -> Wanted:
    from tidegate.state.clock import now
    from tidegate.sync.staged import Wanted

    names = {pipeline.name for pipeline in chosen_pipelines(invocation, pipelines)} if pipelines else None

    def asked(stream: StreamId | None) -> bool:
        from tidegate.config.spelling import matches
        from tidegate.sync.streams import owner

        if stream is None:
            return not tables and not pipelines
        own = owner(stream).name
        in_pipeline = names is None or stream.pipeline in names
        return in_pipeline and (not tables or any(matches(name, own) for name in tables))

    return Wanted(states, asked, now() - older_than if older_than else None)


def _in_words(totals: Totals) -> str:
    from tidegate.observe.figures import counted, size

    split = ", ".join(f"{number:,} {state.value}" for state, number in sorted(totals.states.items()))
    return f"{counted(totals.count, 'file')} ({split}), {size(totals.bytes)}" if totals.count else "no files"


def _name(item: Listed) -> str:
    return item.object.key if item.unfinished is None else f"{item.object.key} (unfinished)"


def _json(item: Listed) -> dict[str, Any]:
    return {
        "key": item.object.key,
        "state": item.state.value.replace(" ", "_"),
        "unfinished": item.unfinished is not None,
        "pipeline": item.stream.pipeline if item.stream else None,
        "table": item.stream.name if item.stream else None,
        "bytes": item.object.bytes,
        "modified": item.object.modified.isoformat(),
    }

"""`tidegate staging`: look at staged files, and clean up. What is pending is never touched."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from tidegate.cli.choosing import (
    chosen_pipelines,
    confirm,
    json_option,
    pipelines_option,
    print_json,
    tables_option,
    yes_option,
)
from tidegate.cli.commands import Group
from tidegate.cli.invocation import Invocation, invocation_of

if TYPE_CHECKING:
    from tidegate.config.pipelines import Pipeline
    from tidegate.core.watermark import StreamId
    from tidegate.staging.contract import Staging
    from tidegate.sync.staged import Listed

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
    from tidegate.observe.figures import moment, size
    from tidegate.sync.clock import now
    from tidegate.sync.staged import ObjectState

    invocation = invocation_of(ctx)
    wanted = _states(loaded=loaded, orphaned=orphaned) or frozenset(ObjectState)
    before = now() - older_than if older_than else None
    found = [
        item
        for _, items in _listed(invocation, pipelines)
        for item in items
        if item.state in wanted
        and _asked(item.stream, pipelines, tables, invocation)
        and (before is None or item.object.modified < before)
    ]
    if as_json:
        print_json([_json(item) for item in found])
        return
    rows = [
        [
            item.state.value,
            str(item.stream or "–"),
            size(item.object.bytes),
            moment(item.object.modified),
            item.object.key,
        ]
        for item in found
    ]
    invocation.terminal.table(["state", "table", "size", "written", "file"], rows)
    invocation.terminal.say(_totals(found))


@command.command()
@_filters
@yes_option
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
) -> None:
    """Delete files that are loaded or orphaned, after showing them and asking."""
    from tidegate.sync.clock import now
    from tidegate.sync.staged import ObjectState, choose

    invocation = invocation_of(ctx)
    states = _states(loaded=loaded, orphaned=orphaned) or frozenset(
        {ObjectState.LOADED, ObjectState.ORPHANED}
    )
    before = now() - older_than if older_than else None
    chosen: list[tuple[Staging, list[Listed]]] = []
    for staging, items in _listed(invocation, pipelines):
        asked = _asker(pipelines, tables, invocation)
        chosen.append((staging, choose(items, states=states, tables=asked, before=before)))
    everything = [item for _, items in chosen for item in items]
    if not everything:
        invocation.terminal.say("there is nothing to delete")
        return
    for item in everything:
        invocation.terminal.say(f"{item.state.value:<9} {item.object.key}")
    confirm(f"Delete {_totals(everything)}?", yes=yes or force)
    for staging, items in chosen:
        _delete(invocation, staging, items)


def _delete(invocation: Invocation, staging: Staging, items: Sequence[Listed]) -> None:
    from tidegate.observe.figures import counted, size
    from tidegate.state.process import this_process
    from tidegate.sync.clock import new_token, now
    from tidegate.sync.staged import delete

    done = delete(items, staging, holder=this_process("tidegate staging clean"), clock=now, token=new_token)
    freed = size(sum(item.object.bytes for item in done.deleted))
    invocation.terminal.say(f"{counted(len(done.deleted), 'file')} deleted, {freed} freed")
    for stream in sorted({item.stream for item in done.kept if item.stream is not None}):
        count = sum(item.stream == stream for item in done.kept)
        kept = f"{counted(count, 'file')} of {stream} kept"
        invocation.terminal.warn(f"{kept}: a run holds the table, or refers to them again")


def _states(*, loaded: bool, orphaned: bool) -> Any:
    from tidegate.sync.staged import ObjectState

    chosen = {ObjectState.LOADED: loaded, ObjectState.ORPHANED: orphaned}
    return frozenset(state for state, wanted in chosen.items() if wanted)


def _listed(invocation: Invocation, names: Sequence[str]) -> list[tuple[Staging, list[Listed]]]:
    """Staging areas of the chosen pipelines, judged by the stores of *all* pipelines that use them."""
    from tidegate.state.opening import open_store
    from tidegate.sync.library import open_staging
    from tidegate.sync.staged import list_staged

    areas: dict[str, Pipeline] = {}
    for pipeline in chosen_pipelines(invocation, names):
        areas.setdefault(pipeline.staging_name, pipeline)
    all_pipelines = chosen_pipelines(invocation, ())
    found = []
    for name, pipeline in areas.items():
        stores = {other.state_name: other.state for other in all_pipelines if other.staging_name == name}
        staging = open_staging(pipeline.staging)
        found.append((staging, list_staged(staging, [open_store(state) for state in stores.values()])))
    return found


def _asker(
    pipelines: Sequence[str], tables: Sequence[str], invocation: Invocation
) -> Callable[[StreamId], bool]:
    names = {pipeline.name for pipeline in chosen_pipelines(invocation, pipelines)} if pipelines else None

    def asked(stream: StreamId) -> bool:
        from tidegate.config.spelling import matches
        from tidegate.sync.streams import owner

        own = owner(stream).name
        in_pipeline = names is None or stream.pipeline in names
        return in_pipeline and (not tables or any(matches(name, own) for name in tables))

    return asked


def _asked(
    stream: StreamId | None, pipelines: Sequence[str], tables: Sequence[str], invocation: Invocation
) -> bool:
    if stream is None:
        return not tables and not pipelines
    return _asker(pipelines, tables, invocation)(stream)


def _totals(items: Sequence[Listed]) -> str:
    from tidegate.observe.figures import counted, size

    states = Counter(item.state.value for item in items)
    split = ", ".join(f"{number:,} {state}" for state, number in sorted(states.items()))
    total = size(sum(item.object.bytes for item in items))
    return f"{counted(len(items), 'file')} ({split}), {total}" if items else "no files"


def _json(item: Listed) -> dict[str, Any]:
    return {
        "key": item.object.key,
        "state": item.state.value.replace(" ", "_"),
        "pipeline": item.stream.pipeline if item.stream else None,
        "table": item.stream.name if item.stream else None,
        "bytes": item.object.bytes,
        "modified": item.object.modified.isoformat(),
    }

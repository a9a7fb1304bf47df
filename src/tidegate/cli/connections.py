"""`tidegate connections`: look at connections, and try them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from tidegate.cli.choosing import json_option, print_json
from tidegate.cli.commands import Group
from tidegate.cli.invocation import Invocation, invocation_of
from tidegate.core.errors import ConnectError, TidegateError, UsageError

if TYPE_CHECKING:
    from tidegate.config.connections import Section


@click.group(cls=Group, name="connections")
def command() -> None:
    """Look at connections, and try them."""


def _complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    try:
        names = [name for _, name in _entries(invocation_of(ctx))]
    except TidegateError:
        return []  # a project that cannot be read completes nothing; the command itself will say why
    return [CompletionItem(name) for name in dict.fromkeys(names) if name.startswith(incomplete)]


@command.command(name="list")
@json_option
@click.pass_context
def list_(ctx: click.Context, /, *, as_json: bool) -> None:
    """List sources, targets, staging areas and stores."""
    invocation = invocation_of(ctx)
    described = invocation.project.describe()
    groups = {**described["connections"], "staging": described["staging"], "state": described["state"]}
    facts = [
        {"kind": kind.removesuffix("s"), "name": name, **entry}
        for kind, entries in groups.items()
        for name, entry in entries.items()
    ]
    if as_json:
        print_json(facts)
        return
    rows = [[fact["kind"], fact["name"], str(fact.get("type", "–")), _place(fact)] for fact in facts]
    invocation.terminal.table(["kind", "name", "type", "where"], rows)


def _place(fact: dict[str, Any]) -> str:
    if "problem" in fact:
        return str(fact["problem"])
    if "host" in fact:
        return f"{fact['host']}:{fact['port']}/{fact['database']}"
    return str(fact.get("path") or fact.get("url") or fact.get("bucket") or "–")


@command.command()
@click.option(
    "-c",
    "--connection",
    "names",
    multiple=True,
    metavar="NAME",
    shell_complete=_complete,
    help="One connection; may be given several times. [default: all]",
)
@json_option
@click.pass_context
def test(ctx: click.Context, /, *, names: Sequence[str], as_json: bool) -> int:
    """Connect, log in, and say in words what works and what does not. Exits 5 if one cannot be reached."""
    invocation = invocation_of(ctx)
    entries = _entries(invocation)
    _demand_known(names, entries)
    results = []
    codes = set()
    for section, name in entries:
        if names and name not in names:
            continue
        error, answer = _try(invocation, section, name)
        codes.add(error.exit_code if error else 0)
        fact = {"kind": section.value, "name": name, "ok": error is None, "answer": answer}
        results.append({**fact, "hint": error.hint if error else None})
        if not as_json:
            _tell(invocation, section, name, error, answer)
    if as_json:
        print_json(results)
    bad = codes - {0}
    return 0 if not bad else ConnectError.exit_code if ConnectError.exit_code in bad else max(bad)


def _entries(invocation: Invocation) -> list[tuple[Section, str]]:
    from tidegate.config.connections import Section

    connections = invocation.project.connections
    return [(section, name) for section in Section for name in connections.names(section)]


def _demand_known(names: Sequence[str], entries: Sequence[tuple[Section, str]]) -> None:
    from tidegate.config.spelling import did_you_mean, listed

    known = list(dict.fromkeys(name for _, name in entries))
    for name in names:
        if name not in known:
            raise UsageError(
                f"there is no connection `{name}`{did_you_mean(name, known)}",
                hint=f"there are {listed(known)}",
            )


def _try(invocation: Invocation, section: Section, name: str) -> tuple[TidegateError | None, str]:
    from tidegate.config.connections import Section

    tests: dict[Section, Callable[[Any, str], str]] = {
        Section.SOURCE: _source,
        Section.TARGET: _target,
        Section.STAGING: _staging,
        Section.STATE: _state,
    }
    connections = invocation.project.connections
    try:
        connections.check_available(section, name)
        return None, tests[section](connections, name)
    except TidegateError as error:
        return error, error.message


def _source(connections: Any, name: str) -> str:
    from tidegate.observe.figures import counted
    from tidegate.sync.library import source_of

    source = source_of(connections, name)
    try:
        return f"connected, {counted(len(source.tables()), 'table')} can be read"
    finally:
        source.close()


def _target(connections: Any, name: str) -> str:
    from tidegate.core.watermark import StreamId
    from tidegate.sync.library import target_of

    target = target_of(connections.target(name))
    try:
        # Any question will do; this one is cheap, and asks what loading asks first.
        target.last_run(StreamId("tidegate", "connections test"))
        return "connected"
    finally:
        target.close()


def _staging(connections: Any, name: str) -> str:
    from tidegate.observe.figures import counted, size
    from tidegate.sync.library import open_staging

    found = list(open_staging(connections.staging(name)).list())
    return f"reachable, {counted(len(found), 'file')}, {size(sum(item.bytes for item in found))}"


def _state(connections: Any, name: str) -> str:
    from tidegate.observe.figures import counted
    from tidegate.state.opening import open_store

    store = open_store(connections.state(name))
    try:
        listing = store.streams()
    finally:
        store.close()
    damaged = f", {counted(len(listing.damaged), 'damaged record')}" if listing.damaged else ""
    return f"reachable, {counted(len(listing.streams), 'table')} known{damaged}"


def _tell(
    invocation: Invocation, section: Section, name: str, error: TidegateError | None, answer: str
) -> None:
    if error is None:
        invocation.terminal.show(f"{section.value} {name}: {answer}")
        return
    where = f" ({error.where})" if error.where else ""
    invocation.terminal.error(f"{section.value} {name}{where}: {answer}", error.hint)

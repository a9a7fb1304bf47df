"""`tidegate connections`: look at connections, and try them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from tidegate.cli.choosing import json_option, print_json
from tidegate.cli.commands import Group
from tidegate.cli.invocation import Invocation, invocation_of
from tidegate.core.errors import ConnectError, TidegateError, UsageError

if TYPE_CHECKING:
    from tidegate.config.connections import Section
    from tidegate.sources.contract import Source


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
    results = [_try(invocation, section, name) for section, name in entries if not names or name in names]
    if as_json:
        print_json([result.to_json() for result in results])
    else:
        for result in results:
            result.tell(invocation)
    bad = {result.error.exit_code for result in results if result.error}
    return 0 if not bad else ConnectError.exit_code if ConnectError.exit_code in bad else max(bad)


@dataclass(frozen=True)
class Answer:
    """What a connection answered."""

    kind: str
    name: str
    text: str
    warnings: tuple[str, ...] = ()
    error: TidegateError | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "name": self.name,
            "ok": self.error is None,
            "answer": self.text,
            "warnings": list(self.warnings),
            "hint": self.error.hint if self.error else None,
        }

    def tell(self, invocation: Invocation) -> None:
        if self.error is not None:
            where = f" ({self.error.where})" if self.error.where else ""
            invocation.terminal.error(f"{self.kind} {self.name}{where}: {self.text}", self.error.hint)
            return
        invocation.terminal.show(f"{self.kind} {self.name}: {self.text}")
        for warning in self.warnings:
            invocation.terminal.warn(f"{self.kind} {self.name}: {warning}")


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


Tested = tuple[str, tuple[str, ...]]
"""What works, in words, and what does not quite."""


def _try(invocation: Invocation, section: Section, name: str) -> Answer:
    from tidegate.config.connections import Section

    tests: dict[Section, Callable[[Any, str], Tested]] = {
        Section.SOURCE: _source,
        Section.TARGET: _target,
        Section.STAGING: _staging,
        Section.STATE: _state,
    }
    connections = invocation.project.connections
    try:
        connections.check_available(section, name)
        return Answer(section.value, name, *tests[section](connections, name))
    except TidegateError as error:
        return Answer(section.value, name, error.message, error=error)


def _source(connections: Any, name: str) -> Tested:
    from tidegate.observe.figures import counted
    from tidegate.sync.library import source_of

    source = source_of(connections, name)
    try:
        tables = source.tables()
        safe, warnings = _ceiling(source, tables)
        return f"connected, {counted(len(tables), 'table')} can be read{safe}", warnings
    finally:
        source.close()


def _ceiling(source: Source, tables: Sequence[str]) -> Tested:
    """Whether open transactions can be seen here, so that no row is skipped because it committed late."""
    from datetime import timedelta

    from tidegate.core.strategies import CeilingSettings, Cursor

    if not tables:
        return "", ()
    # A cursor without columns asks for the clock and the open transactions alone.
    ceiling = source.freeze(source.table(tables[0]), Cursor(), CeilingSettings(max_wait=timedelta(0)))
    return ("", ceiling.warnings) if ceiling.warnings else (", and open transactions can be seen", ())


def _target(connections: Any, name: str) -> Tested:
    from tidegate.core.watermark import StreamId
    from tidegate.sync.library import target_of

    target = target_of(connections.target(name))
    try:
        # Any question will do; this one is cheap, and asks what loading asks first.
        target.last_run(StreamId("tidegate", "connections test"))
        return "connected", ()
    finally:
        target.close()


def _staging(connections: Any, name: str) -> Tested:
    from tidegate.observe.figures import counted, size
    from tidegate.sync.library import open_staging

    found = list(open_staging(connections.staging(name)).list())
    return f"reachable, {counted(len(found), 'file')}, {size(sum(item.bytes for item in found))}", ()


def _state(connections: Any, name: str) -> Tested:
    from tidegate.observe.figures import counted
    from tidegate.state.opening import open_store

    store = open_store(connections.state(name))
    try:
        listing = store.streams()
    finally:
        store.close()
    damaged = tuple(f"{record.where}: {record.problem}" for record in listing.damaged)
    return f"reachable, {counted(len(listing.streams), 'table')} known", damaged

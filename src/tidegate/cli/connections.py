"""`tidegate connections`: look at connections, and try them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from tidegate.cli.choosing import json_option, print_json
from tidegate.cli.commands import Group
from tidegate.cli.invocation import Invocation, invocation_of
from tidegate.core.errors import ConnectError, TidegateError, UsageError
from tidegate.observe.terminal import Terminal, Tone

if TYPE_CHECKING:
    from tidegate.cli.probes import Step
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
    """Try connections step by step, and say in words what works, what does not, and what to do about it.

    Names, tunnels, TLS, logins, privileges and clocks of servers; folders and buckets; the records of stores.
    Exits 5 if one cannot be reached.
    """
    from tidegate.cli.probes import probe

    invocation = invocation_of(ctx)
    entries = _entries(invocation)
    _demand_known(names, entries)
    results = []
    for section, name in entries:
        if not names or name in names:
            steps = tuple(probe(invocation.project.connections, section, name))
            results.append(Answer(section.value, name, steps))
            if not as_json:
                results[-1].tell(invocation.terminal)
    if as_json:
        print_json([result.to_json() for result in results])
    bad = {result.error.exit_code for result in results if result.error}
    return 0 if not bad else ConnectError.exit_code if ConnectError.exit_code in bad else max(bad)


@dataclass(frozen=True)
class Answer:
    """What a connection answered."""

    kind: str
    name: str
    steps: tuple[Step, ...]

    @property
    def error(self) -> TidegateError | None:
        return self.steps[-1].error if self.steps else None

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "name": self.name,
            "ok": self.error is None,
            "steps": [
                {
                    "step": step.name,
                    "ok": step.error is None,
                    "warning": step.warning,
                    "answer": step.answer,
                    "hint": step.hint,
                }
                for step in self.steps
            ],
        }

    def tell(self, terminal: Terminal) -> None:
        warned = any(step.warning for step in self.steps)
        verdict, tone = ("works", Tone.GOOD) if not warned else ("works, with reservations", Tone.WARN)
        if self.error is not None:
            verdict, tone = "does not work", Tone.BAD
        terminal.show(f"{self.kind} {self.name}: {verdict}", tone)
        width = max(len(step.name) for step in self.steps)
        for step in self.steps:
            sign, tone = _sign(step)
            terminal.show(f"  {sign} {step.name.ljust(width)}  {step.answer}", tone)
            if step.hint:
                terminal.show(f"    {' ' * width}  → {step.hint}", Tone.FAINT)


def _sign(step: Step) -> tuple[str, Tone]:
    if step.error is not None:
        return "✗", Tone.BAD
    return ("!", Tone.WARN) if step.warning else ("✓", Tone.PLAIN)


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

"""`tidegate alerts`: try out who is told when something is wrong."""

from __future__ import annotations

from collections.abc import Sequence

import click

from tidegate.cli.choosing import pipelines_option
from tidegate.cli.commands import Group
from tidegate.cli.invocation import Invocation, invocation_of


@click.group(cls=Group, name="alerts")
def command() -> None:
    """Try out who is told when something is wrong.

    Syncs and jobs tell the receivers under `alerts:` in connections.yml by themselves.
    """


@command.command()
@pipelines_option
@click.pass_context
def test(ctx: click.Context, /, *, pipelines: Sequence[str]) -> int:
    """Send every receiver a message that says it is a test. Exits 1 if one cannot be reached."""
    invocation = invocation_of(ctx)
    failed = [_tried(invocation, name) for name in pipelines or invocation.project.pipelines]
    return 1 if any(failed) else 0


def _tried(invocation: Invocation, name: str) -> bool:
    """Whether anything went wrong."""
    from tidegate.observe.alerts import alerts_of
    from tidegate.state.clock import now

    project = invocation.project
    pipeline = project.delta_pipeline(name) if project.is_delta(name) else project.pipeline(name)
    alerts = alerts_of(pipeline, hidden=invocation.secrets.hidden, clock=now)
    outcomes = alerts.try_out(name)
    for receiver, problem in outcomes.items():
        if problem is None:
            invocation.terminal.say(f"{name}: `{receiver}` took the message")
        else:
            invocation.terminal.error(f"{name}: `{receiver}` did not take the message: {problem}", None)
    for problem in alerts.problems:
        invocation.terminal.error(f"{name}: {problem}", None)
    if not outcomes and not alerts.problems:
        invocation.terminal.say(f"{name}: nobody is to be told of anything")
    return bool(alerts.problems) or any(outcomes.values())

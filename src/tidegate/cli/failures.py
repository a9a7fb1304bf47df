"""How a command that cannot go on ends: what happened, where, what to do, and the right exit code."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import click

from tidegate.cli.invocation import Invocation, invocation_of
from tidegate.core.errors import TidegateError
from tidegate.core.watermark import StreamId
from tidegate.observe.terminal import place_in_words

INTERRUPTED = 130
FAILED = 1

_log = logging.getLogger("tidegate.cli")


@contextmanager
def ended(ctx: click.Context) -> Iterator[None]:
    """Turn what a command raises into words and an exit code."""
    invocation = invocation_of(ctx)
    try:
        yield
    except TidegateError as error:
        say(invocation, error)
        ctx.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        invocation.terminal.warn("interrupted, state intact; run it again to go on")
        ctx.exit(INTERRUPTED)
    except (click.ClickException, click.exceptions.Exit):
        raise
    except OSError as error:
        if error.errno == errno.EPIPE:  # whoever read our output has enough of it
            raise
        _apologise(invocation, error)
        ctx.exit(FAILED)
    except Exception as error:  # noqa: BLE001 - the process ends here, with a failure's exit code
        _apologise(invocation, error)
        ctx.exit(FAILED)


def say(invocation: Invocation, error: TidegateError, stream: StreamId | None = None) -> None:
    """One line for what happened and where, one for what to do. A trace only where it was asked for."""
    _log.error("%s", error, exc_info=error if invocation.debug else None)
    place = error.where if stream is None else place_in_words(stream, error.where)
    where = f"{place}: " if place else ""
    invocation.terminal.error(f"{where}{error.message}", error.hint)


def _apologise(invocation: Invocation, error: Exception) -> None:
    # The trace goes to the log file, and with --debug to standard error.
    _log.critical("unexpected: %r", error, exc_info=error)
    invocation.terminal.error(
        f"something unexpected happened, which is a defect of Tidegate: {type(error).__name__}: {error}",
        "the state is intact. Please report it, with the trace that the same command shows with --debug",
    )

"""What Spark reports of a job that failed, cut down to what happened."""

from __future__ import annotations

from tidegate.core.errors import TidegateError
from tidegate.spark.session import LazySession

_AROUND_IT = ("File", "at ", "Traceback", "SQLSTATE")
"""How lines begin that say where it happened, and the code that Spark Connect puts behind all of them."""


def in_words(
    error: BaseException, session: LazySession, kind: type[TidegateError], *, where: str | None, again: str
) -> BaseException:
    """The error for a person: that the server went away, or else, as `kind`, what a task has complained of.

    `again` says from where the next run goes on.
    """
    if isinstance(error, TidegateError) or not isinstance(error, Exception):
        return error
    lost = session.lost(error)
    if lost is not None:
        return lost
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    absent = [line for line in lines if line.startswith("ModuleNotFoundError:")]
    python = [line for line in lines if ":" in line and not line.startswith(_AROUND_IT)]
    return kind(
        f"a Spark task failed: {(absent or python or lines or [type(error).__name__])[-1]}",
        where=where,
        hint="tasks need the packages that the driver has: install them on the machines that run tasks, "
        "or send an environment along, as docs/how-to/run-on-a-cluster.md shows"
        if absent
        else f"run it again to go on from {again}; --debug shows the whole trace",
    ).with_traceback(error.__traceback__)

"""Options that many commands share, and what they choose: pipelines, tables, and the streams behind them."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from tidegate.cli.invocation import Invocation, invocation_of
from tidegate.core.errors import TidegateError, UsageError

if TYPE_CHECKING:
    from tidegate.config.deltas import DeltaPipeline
    from tidegate.config.pipelines import Pipeline
    from tidegate.core.watermark import StreamId
    from tidegate.state.contract import Listing, Store, Stored

F = TypeVar("F", bound=Callable[..., Any])


# --- Options -------------------------------------------------------------------


class FiniteRange(click.FloatRange):
    """Numbers of a range. `nan` is neither below its end nor above, and must not pass for one of them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return found


def _named_pipelines(words: str) -> Callable[[F], F]:
    return click.option(
        "-p",
        "--pipeline",
        "pipelines",
        multiple=True,
        metavar="NAME",
        shell_complete=_complete_pipelines,
        help=words,
    )


def _named_tables(words: str) -> Callable[[F], F]:
    return click.option(
        "-t",
        "--table",
        "tables",
        multiple=True,
        metavar="NAME",
        shell_complete=_complete_tables,
        help=words,
    )


def pipelines_option(function: F) -> F:
    words = "A pipeline, by its name or its file's name. May be given several times. [default: all]"
    return _named_pipelines(words)(function)


def tables_option(function: F) -> F:
    words = "A table, or a pattern such as 'order*'. May be given several times. [default: all]"
    return _named_tables(words)(function)


def one_table_options(function: F) -> F:
    """For commands that are meant for one table: nothing is chosen for them."""
    table = _named_tables("The table. [required]")
    pipeline = _named_pipelines("Its pipeline, where several have a table of this name.")
    return pipeline(table(function))


def json_option(function: F) -> F:
    def claim(ctx: click.Context, _: click.Parameter, value: bool) -> bool:  # noqa: FBT001 - click's signature
        if value:
            invocation_of(ctx).machine_output = True
        return value

    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        callback=claim,
        help="JSON on standard output, and nothing else there.",
    )(function)


def yes_option(function: F) -> F:
    option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")
    old = click.option("--force", "force", is_flag=True, hidden=True)
    return option(old(function))


def print_json(data: Any, *, compact: bool = False) -> None:
    json.dump(data, sys.stdout, indent=None if compact else 2, ensure_ascii=False, default=str)
    sys.stdout.write("\n")
    sys.stdout.flush()


def write_whole(path: Path, text: str) -> None:
    """Whole or not at all: whoever waits for the file never reads half of it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise UsageError(f"the result cannot be written: {error.strerror}", where=str(path)) from error


def read_json(file: Path) -> Any:
    """What a file holds that somebody has named."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"the file cannot be read: {error.strerror}", where=str(file)) from error
    except ValueError as error:
        raise UsageError("the file is not JSON", where=str(file)) from error


def print_json_list(items: Iterable[Any]) -> None:
    """A list as it comes: the reader gets the first item before there is a last one."""
    between = "["
    for item in items:
        text = json.dumps(item, indent=2, ensure_ascii=False, default=str)
        sys.stdout.write(f"{between}\n{text}")
        between = ","
    sys.stdout.write("[]\n" if between == "[" else "\n]\n")
    sys.stdout.flush()


def _can_ask() -> bool:
    return sys.stdin.isatty()


class Declined(TidegateError):
    """The answer was no."""


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal; elsewhere nobody can answer, so it has to be said beforehand."""
    if yes:
        return
    if not _can_ask():
        raise UsageError("this needs a yes, and there is no terminal to ask on", hint="add --yes to mean it")
    if not click.confirm(question, err=True):
        raise Declined("nothing was changed")


# --- Completion ----------------------------------------------------------------


def _complete_pipelines(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return completed(lambda: invocation_of(ctx).project.pipelines, incomplete)


def _complete_tables(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    def names() -> list[str]:
        project = invocation_of(ctx).project
        chosen = ctx.params.get("pipelines") or project.syncs
        return [table for name in chosen for table in project.pipeline(name).tables]

    return completed(names, incomplete)


def completed(names: Callable[[], Iterable[str]], incomplete: str) -> list[CompletionItem]:
    try:
        return [CompletionItem(name) for name in dict.fromkeys(names()) if name.startswith(incomplete)]
    except TidegateError:
        return []  # a project that cannot be read completes nothing; the command itself will say why


# --- Streams -------------------------------------------------------------------


@dataclass(frozen=True)
class Chosen:
    """A table of a pipeline and what the store has of it."""

    pipeline: Pipeline
    store: Store
    stored: Stored
    beside: tuple[Stored, ...] = ()
    """Streams beside the table's own: its ranges, its rows without a cursor."""

    @property
    def stream(self) -> StreamId:
        return self.stored.stream

    @property
    def streams(self) -> list[StreamId]:
        return [self.stream, *(stored.stream for stored in self.beside)]


class Stores:
    """The stores of a project's pipelines, each opened and listed once."""

    def __init__(self) -> None:
        self._open: dict[str, Store] = {}
        self._listings: dict[tuple[str, str], Listing] = {}

    def of(self, pipeline: Pipeline | DeltaPipeline) -> Store:
        from tidegate.state.opening import open_store

        if pipeline.state_name not in self._open:
            self._open[pipeline.state_name] = open_store(pipeline.state)
        return self._open[pipeline.state_name]

    def listing(self, pipeline: Pipeline | DeltaPipeline) -> Listing:
        key = (pipeline.state_name, pipeline.name)
        if key not in self._listings:
            self._listings[key] = self.of(pipeline).streams(pipeline.name)
        return self._listings[key]


def chosen_pipelines(invocation: Invocation, names: Sequence[str]) -> list[Pipeline]:
    """Those that are named; else all that move tables: pipelines of kind delta have commands of their own."""
    project = invocation.project
    if not names and not project.pipelines:
        raise UsageError(
            "the project has no pipeline yet", where=str(project.root), hint="write one in config/pipelines/"
        )
    found = {pipeline.name: pipeline for pipeline in map(project.pipeline, names or project.syncs)}
    return list(found.values())


def chosen_tables(pipelines: Sequence[Pipeline], tables: Sequence[str], stores: Stores) -> list[Chosen]:
    """The tables that were asked for: those configured, and those that have a state from former times."""
    chosen: dict[StreamId, Chosen] = {}
    met: set[str] = set()
    for pipeline in pipelines:
        known = {item.stream.name: item for item in _tables_of(pipeline, stores)}
        for name in tables or known:
            for table in _matching(pipeline, known, name):
                met.add(name)
                item = known.get(table) or _unknown_yet(pipeline, stores, table)
                chosen[item.stream] = item
    for name in tables:
        if name not in met:
            raise _no_table(name, pipelines, stores)
    return list(chosen.values())


def _matching(pipeline: Pipeline, known: Iterable[str], name: str) -> list[str]:
    from tidegate.config.spelling import is_pattern, matches

    if name in known:
        return [name]
    if is_pattern(name):
        return [table for table in known if matches(name, table)]
    try:
        pipeline.settings_for(name)
    except UsageError:
        return []
    return [name]


def _tables_of(pipeline: Pipeline, stores: Stores) -> list[Chosen]:
    """Configured tables in the order of the file, then those that only the store knows."""
    from tidegate.config.spelling import is_pattern
    from tidegate.sync.streams import owner

    stored = {item.stream.name: item for item in stores.listing(pipeline).streams}
    configured = [name for name in pipeline.tables if not is_pattern(name)]
    own = [owner(item.stream).name for item in stored.values()]
    return [_chosen(pipeline, stores, name, stored) for name in dict.fromkeys([*configured, *own])]


def _chosen(pipeline: Pipeline, stores: Stores, name: str, stored: dict[str, Stored]) -> Chosen:
    from tidegate.core.watermark import StreamId
    from tidegate.state.contract import Stored
    from tidegate.sync.streams import owner

    stream = StreamId(pipeline.name, name)
    others = (item for item in stored.values() if item.stream != stream and owner(item.stream) == stream)
    beside = tuple(item for item in others if item.watermark is not None)  # one that was only held is none
    return Chosen(pipeline, stores.of(pipeline), stored.get(name) or Stored(stream), beside)


def _unknown_yet(pipeline: Pipeline, stores: Stores, name: str) -> Chosen:
    return _chosen(pipeline, stores, name, {})


def _no_table(name: str, pipelines: Sequence[Pipeline], stores: Stores) -> UsageError:
    from tidegate.config.spelling import did_you_mean, listed

    known = [item.stream.name for pipeline in pipelines for item in _tables_of(pipeline, stores)]
    where = pipelines[0].file if len(pipelines) == 1 else None
    return UsageError(
        f"there is no table `{name}`{did_you_mean(name, known)}",
        where=where,
        hint=f"there are {listed(dict.fromkeys(known))}",
    )


def one_table(invocation: Invocation, pipelines: Sequence[str], tables: Sequence[str]) -> Chosen:
    """The one table that a change is meant for."""
    if not tables:
        raise UsageError("name the table with -t")
    found = chosen_tables(chosen_pipelines(invocation, pipelines), tables, Stores())
    if len(found) > 1:
        names = ", ".join(str(item.stream) for item in found)
        raise UsageError(
            f"this is for one table at a time, and {names} are meant", hint="name it with -p and -t"
        )
    return found[0]

"""Upstreams of pipelines of kind delta where commands look at marks: their positions are versions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.cli.choosing import Chosen, Stores, chosen_pipelines, chosen_tables
from tidegate.cli.invocation import Invocation
from tidegate.core.errors import UsageError

if TYPE_CHECKING:
    from tidegate.config.deltas import DeltaPipeline
    from tidegate.config.pipelines import Pipeline
    from tidegate.core.watermark import StreamId, Watermark
    from tidegate.delta.library import DeltaPlans
    from tidegate.state.contract import Store, Stored


@dataclass(frozen=True)
class Followed:
    """An upstream of a pipeline and what the store has of it."""

    pipeline: DeltaPipeline
    store: Store
    stored: Stored
    beside: tuple[Stored, ...] = ()
    """Nothing is kept beside it."""

    @property
    def stream(self) -> StreamId:
        return self.stored.stream

    @property
    def streams(self) -> list[StreamId]:
        return [self.stream]


Item = Chosen | Followed


def chosen_syncs(invocation: Invocation, names: Sequence[str]) -> list[Pipeline]:
    """Of those that are named, or of all, the pipelines that move tables."""
    syncs = [name for name in names if not invocation.project.is_delta(name)]
    return chosen_pipelines(invocation, syncs) if syncs or not names else []


def chosen_deltas(invocation: Invocation, names: Sequence[str]) -> list[DeltaPipeline]:
    """Of those that are named, or of all, the pipelines that follow Delta tables."""
    project = invocation.project
    deltas = [name for name in names if project.is_delta(name)] if names else project.deltas
    return list({found.name: found for found in map(project.delta_pipeline, deltas)}.values())


def chosen_of_all_kinds(invocation: Invocation, names: Sequence[str]) -> list[Pipeline | DeltaPipeline]:
    return [*chosen_syncs(invocation, names), *chosen_deltas(invocation, names)]


def chosen_items(
    invocation: Invocation, pipelines: Sequence[str], tables: Sequence[str], stores: Stores
) -> list[Item]:
    """Tables and upstreams that were asked for. A name has to mean one of either."""
    syncs = chosen_syncs(invocation, pipelines)
    known = [item for pipeline in chosen_deltas(invocation, pipelines) for item in followed(pipeline, stores)]
    if not tables:
        return [*chosen_tables(syncs, (), stores), *known]
    found: dict[StreamId, Item] = {}
    for name in tables:
        mine = list(_matching(known, name))
        found |= {item.stream: item for item in _tables(syncs, name, stores, needed=not mine)}
        found |= {item.stream: item for item in mine}
    return list(found.values())


def _matching(known: Iterable[Followed], name: str) -> Iterator[Followed]:
    from tidegate.config.spelling import matches

    return (item for item in known if matches(name, item.stream.name))


def _tables(syncs: Sequence[Pipeline], name: str, stores: Stores, *, needed: bool) -> list[Chosen]:
    try:
        return chosen_tables(syncs, [name], stores)
    except UsageError:
        if needed:
            raise
        return []


def followed(pipeline: DeltaPipeline, stores: Stores) -> list[Followed]:
    """The upstreams that the file names, then those that only the store knows. No catalog is asked."""
    from tidegate.core.watermark import StreamId
    from tidegate.delta.plan import PLANNING
    from tidegate.state.contract import Stored

    known = {stored.stream.name: stored for stored in stores.listing(pipeline).streams}
    planning = known.pop(PLANNING, None)
    names = dict.fromkeys([*(upstream.name for upstream in pipeline.upstreams), *known])
    store = stores.of(pipeline)
    found = [known.get(name) or Stored(StreamId(pipeline.name, name)) for name in names]
    return [Followed(pipeline, store, _held(stored, planning)) for stored in found]


def _held(stored: Stored, planning: Stored | None) -> Stored:
    """Whoever plans or processes a pipeline holds all of its upstreams."""
    from dataclasses import replace

    return replace(stored, lease=stored.lease or (planning.lease if planning else None))


def one_item(invocation: Invocation, pipelines: Sequence[str], tables: Sequence[str]) -> Item:
    """The one table or upstream that a command is meant for."""
    if not tables:
        raise UsageError("name the table with -t")
    found = chosen_items(invocation, pipelines, tables, Stores())
    if len(found) > 1:
        names = ", ".join(str(item.stream) for item in found)
        raise UsageError(
            f"this is for one table at a time, and {names} are meant", hint="name it with -p and -t"
        )
    return found[0]


# --- Moved by hand -----------------------------------------------------------------


@contextmanager
def _plans(invocation: Invocation, pipeline: DeltaPipeline) -> Iterator[DeltaPlans]:
    from tidegate.delta.library import DeltaPlans

    with DeltaPlans(pipeline.name, project=invocation.project, command="tidegate watermark") as plans:
        yield plans


def set_version(
    invocation: Invocation, item: Followed, timestamp: str | None, version: str | None, reason: str
) -> None:
    if timestamp is not None or version is None:
        raise UsageError("its positions are versions of a Delta table", hint="use --id VERSION")
    if not version.isdecimal():
        raise UsageError(f"`{version}` is no version", hint="versions are 0, 1, 2 …")
    _move(invocation, item, int(version), reason)


def rollback_version(invocation: Invocation, item: Followed, to: str, reason: str) -> None:
    from tidegate.delta.plan import version_of
    from tidegate.sync.marks import position_at

    position = position_at(item.store.history(item.stream), to, str(item.stream))
    _move(invocation, item, version_of(position), reason)


def _move(invocation: Invocation, item: Followed, version: int | None, reason: str) -> None:
    from tidegate.delta.plan import version_of

    mark = item.stored.watermark
    before = version_of(mark.extracted.position) if mark else None
    with _plans(invocation, item.pipeline) as plans:
        plans.move({item.stream.name: version}, reason=reason)
    invocation.terminal.say(f"{item.stream}: mark moved from {_said(before)} to {_said(version)}")
    if before is not None and (version is None or version < before):
        _warn_of_rereading(invocation, item)


def reset_versions(invocation: Invocation, items: Sequence[Followed], reason: str) -> None:
    for item in items:
        with _plans(invocation, item.pipeline) as plans:
            known = plans.reset([item.stream.name], reason=reason)
        if not known:
            invocation.terminal.say(f"{item.stream}: was never planned, so there is nothing to reset")
            continue
        invocation.terminal.say(f"{item.stream}: the next plan begins as a first one does")
        _warn_of_rereading(invocation, item)


def restore_versions(
    invocation: Invocation, pipeline: DeltaPipeline, store: Store, marks: Sequence[Watermark], reason: str
) -> None:
    """Put saved records back, under the lease of whoever plans the pipeline."""
    from tidegate.cli.marks_by_hand import by_hand

    with _plans(invocation, pipeline) as plans, plans.streams.alone():
        by_hand(store, []).restore(marks, reason=reason)


def _warn_of_rereading(invocation: Invocation, item: Followed) -> None:
    from tidegate.config.upstreams import DeltaMode

    pipeline = item.pipeline
    likes = list(pipeline.upstreams) or ([pipeline.pattern.like] if pipeline.pattern else [])
    appended = any(target.write_mode == "append" for target in pipeline.settings.targets.values())
    if appended or any(upstream.write_mode is DeltaMode.HISTORY for upstream in likes):
        invocation.terminal.warn(
            f"{item.stream}: what is appended to targets will be there twice for versions that are read again"
        )


def _said(version: int | None) -> str:
    return "the beginning" if version is None else f"version {version}"

"""Plans from Python: the same as `tidegate delta` does, for notebooks and orchestrators.

    plans = DeltaPlans("gold")                       # a pipeline of the project in this folder
    plan = plans.prepare()
    ...                                              # process plan.upstreams, version by version
    plans.complete(plan.run_id, records={"silver.orders": 42})

Planning needs no Spark. One plan at a time: while one is open, `prepare` returns it again, unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from tidegate.config.deltas import DeltaPipeline
from tidegate.config.project import Project
from tidegate.config.upstreams import DeltaSettings, Pattern, Upstream
from tidegate.core import direct, transitions
from tidegate.core.errors import SourceError, UsageError
from tidegate.core.records import VERSION_CURSOR
from tidegate.core.secrecy import hidden
from tidegate.core.transitions import Step
from tidegate.core.watermark import Watermark
from tidegate.delta.checking import Seen
from tidegate.delta.log import TableLog
from tidegate.delta.places import demand_place, found, without
from tidegate.delta.plan import (
    Plan,
    has_failed,
    is_planned,
    newest_id,
    plan_of,
    position_at,
    run_id_of,
    stream_of,
    torn,
    version_of,
)
from tidegate.delta.preparing import Preparing, retried
from tidegate.delta.streams import Change, Streams, there, together
from tidegate.state import clock as clocks
from tidegate.state.contract import Store
from tidegate.state.hold import TTL
from tidegate.state.opening import open_store
from tidegate.state.process import this_process

_RECENT = 100
"""Lines of history that are looked at to count failures."""


class Catalog(Protocol):
    """What knows tables by their names."""

    def place(self, table: str) -> str:
        """Where a table lies."""
        ...

    def tables(self, schema: str) -> Mapping[str, str]:
        """The Delta tables of a schema, by their names, with where they lie."""
        ...


class DeltaPlans:
    """The plans of one pipeline.

    With `upstreams` (names and where the tables lie) and a `store` no project is needed; without them, the
    pipeline is one of kind delta in the project.
    """

    def __init__(
        self,
        pipeline: str,
        upstreams: Mapping[str, str | Path] | None = None,
        *,
        store: Store | str | None = None,
        project: str | Path | Project = ".",
        settings: DeltaSettings | None = None,
        catalog: Catalog | None = None,
        clock: Callable[[], datetime] = clocks.now,
        token: Callable[[], str] = clocks.new_token,
        command: str = "tidegate.DeltaPlans",
    ) -> None:
        self._config: DeltaPipeline | None = None
        if upstreams is None:
            loaded = project if isinstance(project, Project) else Project.load(Path(project))
            self._config = loaded.delta_pipeline(pipeline)
            pipeline = self._config.name
        elif store is None:
            raise UsageError("upstreams were given and no store", hint="say where the marks are kept")
        self._named = upstreams
        self._catalog = catalog
        self._clock = clock
        self._token = token
        self.settings = settings or (self._config.settings if self._config else DeltaSettings())
        ttl = self._config.state.lease_seconds if self._config and store is None else TTL
        self.streams = Streams(
            store=_opened(store, self._config),
            pipeline=pipeline,
            holder=this_process(command),
            clock=clock,
            token=token,
            ttl=ttl,
        )

    @property
    def pipeline(self) -> str:
        return self.streams.pipeline

    @property
    def config(self) -> DeltaPipeline | None:
        return self._config

    def __enter__(self) -> DeltaPlans:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.streams.store.close()

    # --- Upstreams ---------------------------------------------------------------

    def upstreams(self) -> dict[str, Upstream]:
        """Those that are named, or those that are found now, by name."""
        if self._named is not None:
            named = [Upstream(name, str(place), target_name=name) for name, place in self._named.items()]
        else:
            assert self._config is not None
            pattern = self._config.pattern
            named = [*self._config.upstreams, *(self._found(pattern) if pattern else ())]
        if not named:
            pattern = self._config.pattern if self._config else None
            raise SourceError(
                "no Delta table was found" if pattern else "there is no upstream",
                where=(pattern.schema or pattern.place) if pattern else self.pipeline,
                hint="check `from` or `schema` of the upstreams",
            )
        return {upstream.name: upstream for upstream in named}

    def latest_versions(self, names: Iterable[str] | None = None) -> dict[str, int]:
        """The newest version of each upstream, as its log has it."""
        chosen = self._chosen(names)
        versions = together(lambda item: TableLog.at(self.place(item)).latest, list(chosen.values()))
        return dict(zip(chosen, versions, strict=True))

    def load_checkpoints(self, names: Iterable[str] | None = None) -> dict[str, int | None]:
        """The last version of each upstream that was processed; None for one that never was."""
        marks = self.streams.marks()
        return {name: _processed(marks.get(name)) for name in self._wanted(names, self._names(marks))}

    def place(self, upstream: Upstream) -> str:
        if upstream.table is not None:
            return self._asked(upstream.table).place(upstream.table)
        return demand_place(upstream.name, upstream.place)

    def _found(self, pattern: Pattern) -> list[Upstream]:
        if pattern.schema is not None:
            schema = pattern.schema
            tables = without(pattern.exclude, self._asked(schema).tables(schema))
        else:
            tables = found(str(pattern.place), pattern.exclude)
        return [
            replace(pattern.like, name=name, place=place, target_name=name)  # of which no two are the same
            for name, place in tables.items()
        ]

    def _asked(self, name: str) -> Catalog:
        if self._catalog is None:
            hint = "give a path, or plan where Spark runs: `tidegate delta plan` asks it"
            raise SourceError(f"only Spark knows where `{name}` lies", where=self.pipeline, hint=hint)
        return self._catalog

    def _names(self, marks: Mapping[str, Watermark]) -> list[str]:
        """The upstreams' names; those that only a catalog knows, by Spark, as the marks have them."""
        pattern = self._config.pattern if self._config else None
        return sorted(marks) if pattern and pattern.schema else list(self.upstreams())

    def _chosen(self, names: Iterable[str] | None) -> dict[str, Upstream]:
        known = self.upstreams()
        return {name: known[name] for name in self._wanted(names, known)}

    def _wanted(self, names: Iterable[str] | None, known: Iterable[str]) -> list[str]:
        all_there = list(known)
        wanted = all_there if names is None else list(names)
        for name in wanted:
            if name not in all_there:
                raise UsageError(
                    f"pipeline `{self.pipeline}` has no upstream `{name}`",
                    hint=f"it has {', '.join(sorted(all_there)[:20])}",
                )
        return wanted

    # --- Planning ----------------------------------------------------------------

    def current_plan(self) -> Plan | None:
        """The plan that is open: PLANNED, or FAILED and waiting to be retried. None if there is none."""
        marks = self.streams.marks()
        left = {name: mark for name, mark in marks.items() if is_planned(mark) or has_failed(mark)}
        names = [name for name in self._names(marks) if name in left and name not in torn(marks)]
        return self._plan(marks, newest_id(marks, names)) if names else None

    def last_plan(self) -> Plan | None:
        """The newest plan, whether or not it is open."""
        marks = self.streams.marks()
        begun = [mark for name, mark in marks.items() if mark.run is not None and name not in torn(marks)]
        if not begun:
            return None
        return self._plan(marks, run_id_of(max(begun, key=lambda mark: mark.runs)))

    def prepare(self, *, rebaseline: Sequence[str] = (), resume: bool | None = None) -> Plan:
        """The plan to process: the open one unchanged, else a new one of all that is new.

        `rebaseline` names upstreams that are read whole again. `resume` decides what becomes of an open plan
        whatever `on_planned` says.
        """
        with self.streams.alone():
            self._chosen(rebaseline)
            preparing = Preparing(
                self.settings,
                self.streams,
                self._chosen(None),
                self.streams.marks(),
                self.place,
                clock=self._clock,
                token=self._token,
            )
            prepared = preparing.prepared(frozenset(rebaseline), resume=resume)
            plan = self._plan(prepared.marks, prepared.run_id)
            return replace(plan, notes=prepared.notes)

    # --- How it ended --------------------------------------------------------------

    def start(self, run_id: str, names: Iterable[str]) -> None:
        """Somebody begins to work on these upstreams of the plan."""

        def change(mark: Watermark | None) -> Step | None:
            if mark is None or not _open(mark, run_id):
                return None
            return direct.start(mark, run_id=run_id, now=self._clock())

        self.streams.change(dict.fromkeys(names, change))

    def complete(
        self,
        run_id: str | None,
        records: int | Mapping[str, int] | None = None,
        *,
        names: Iterable[str] | None = None,
        into: Mapping[str, Sequence[str]] | None = None,
    ) -> Plan:
        """The plan, or those upstreams of it, was processed: their marks move to the ends of their ranges.

        A plain number of records is that of the whole plan, and is recorded with its first upstream. `into`
        names, for the history, the tables that have what was read.
        """
        with self.streams.alone():
            marks, chosen = self._part(run_id, names)
            counts = records if isinstance(records, Mapping) else dict.fromkeys(chosen[:1], records or 0)

            def completed(name: str) -> Change:
                def change(mark: Watermark | None) -> Step | None:
                    if not _open(mark, run_id) or mark is None:
                        return None
                    tables = (into or {}).get(name, ())
                    return direct.complete(mark, rows=counts.get(name, 0), now=self._clock(), into=tables)

                return change

            changed = self.streams.change({name: completed(name) for name in chosen})
            return self._plan({**marks, **there(changed)}, run_id)

    def fail(self, run_id: str | None, error: str, *, names: Iterable[str] | None = None) -> Plan:
        """It was not: the same ranges are there for the next run, with what went wrong."""
        with self.streams.alone():
            marks, chosen = self._part(run_id, names)

            def change(mark: Watermark | None) -> Step | None:
                if mark is None or not _open(mark, run_id):
                    return None
                return transitions.fail(mark, error, self._clock())

            changed = self.streams.change(dict.fromkeys(chosen, change))
            return self._plan({**marks, **there(changed)}, run_id)

    def retry(self, run_id: str | None = None) -> Plan:
        """Plan what failed once more: the same ranges, under the same run id."""
        with self.streams.alone():
            marks = self.streams.marks()
            failed = [name for name, mark in marks.items() if has_failed(mark)]
            mine = [name for name in failed if run_id in (None, run_id_of(marks[name]))]
            if not mine:
                raise UsageError(
                    "no plan has failed", where=self.pipeline, hint="`tidegate delta show` tells"
                )
            again = newest_id(marks, mine)
            changed = retried(self.streams, marks, failed, again, self._clock)
            return self._plan({**marks, **changed}, again)

    @contextmanager
    def processing(self) -> Iterator[Plan]:
        """The plan for the length of a `with` block: completed at its end, failed if it raises."""
        with self.streams.alone():
            plan = self.prepare()
            if plan.run_id is None:
                yield plan
                return
            self.start(plan.run_id, [upstream.name for upstream in plan.work])
            try:
                yield plan
            except BaseException as error:
                self.fail(plan.run_id, hidden(f"{type(error).__name__}: {error}"))
                raise
            self.complete(plan.run_id)

    # --- By hand ---------------------------------------------------------------------

    def move(self, marks: Mapping[str, int | None], *, reason: str) -> None:
        """Set marks by hand: these versions, and all before them, count as processed; None: no version does.

        A plan that is open for them is given up.
        """

        def moved(name: str, version: int | None) -> Change:
            def change(mark: Watermark | None) -> Step:
                now = self._clock()
                known = mark or transitions.new(stream_of(self.pipeline, name), VERSION_CURSOR, now)
                return transitions.move(known, position_at(version), reason=reason, now=now)

            return change

        with self.streams.alone():
            self.streams.change({name: moved(name, version) for name, version in marks.items()})

    def reset(self, names: Iterable[str], *, reason: str) -> list[str]:
        """Start these upstreams over. Returns those that had ever been planned."""

        def change(mark: Watermark | None) -> Step | None:
            return transitions.reset(mark, reason=reason, now=self._clock()) if mark is not None else None

        with self.streams.alone():
            return list(there(self.streams.change(dict.fromkeys(names, change))))

    # --- Looking back ------------------------------------------------------------------

    def history(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Every plan and how it went, newest last."""
        names = sorted(self.streams.marks())
        pasts = together(lambda name: self.streams.history(name, limit), names)
        lines = [
            {"upstream": name, **event.to_json()}
            for name, events in zip(names, pasts, strict=True)
            for event in events
        ]
        lines.sort(key=lambda line: (line["at"], line["upstream"]))
        return lines if limit is None else lines[len(lines) - min(limit, len(lines)) :]

    def seen(self) -> list[Seen]:
        """What is known of each upstream, to judge whether all is well."""
        marks = self.streams.marks()
        names = list(dict.fromkeys([*self._names(marks), *marks]))
        pasts = together(lambda name: self.streams.history(name, _RECENT), names)
        return [Seen(name, marks.get(name), past) for name, past in zip(names, pasts, strict=True)]

    def _part(
        self, run_id: str | None, names: Iterable[str] | None
    ) -> tuple[dict[str, Watermark], list[str]]:
        """All marks, and the upstreams of a plan that are meant. Those that are done are no mistake."""
        marks = self.streams.marks()
        mine = [name for name, mark in marks.items() if run_id is not None and run_id_of(mark) == run_id]
        if not mine:
            raise UsageError(
                f"there is no plan {run_id}",
                where=self.pipeline,
                hint="`tidegate delta show` names the one there is",
            )
        return marks, mine if names is None else [name for name in names if name in mine]

    def _plan(self, marks: Mapping[str, Watermark], run_id: str | None) -> Plan:
        mine = (name for name, mark in marks.items() if run_id_of(mark) == run_id)
        known = dict.fromkeys([*self._names(marks), *mine])
        return plan_of(self.pipeline, run_id, [(name, marks.get(name)) for name in known], self._clock())


def _opened(store: Store | str | None, config: DeltaPipeline | None) -> Store:
    if store is None:
        assert config is not None
        return open_store(config.state)
    return open_store(store) if isinstance(store, str) else store


def _processed(mark: Watermark | None) -> int | None:
    return version_of(mark.extracted.position) if mark else None


def _open(mark: Watermark | None, run_id: str | None) -> bool:
    return mark is not None and mark.open_run is not None and mark.open_run.id == run_id

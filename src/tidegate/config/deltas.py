"""A pipeline of kind delta: which Delta tables are followed, and where their changes go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tidegate.config.alerts import AlertReceiver
from tidegate.config.binding import Binder, Values
from tidegate.config.connection_models import DeltaTarget, StateStore
from tidegate.config.connections import Connections, Section
from tidegate.config.delta_models import (
    DeltaFile,
    DeltaTargetOptions,
    FoundUpstreams,
    UpstreamChoices,
    UpstreamOptions,
    start_of,
)
from tidegate.config.loading import Document
from tidegate.config.problems import KeyPath, Problem, config_error
from tidegate.config.spelling import did_you_mean, listed
from tidegate.config.upstreams import (
    Deletes,
    DeltaMode,
    DeltaSettings,
    Limits,
    OnPlanned,
    OnSchemaChange,
    Pattern,
    TransformTarget,
    Upstream,
    WithoutFeed,
)
from tidegate.config.variables import Variables

KIND = "delta"


@dataclass(frozen=True)
class DeltaPipeline:
    """One file of kind delta, checked. Connections must be usable when they are asked for."""

    name: str
    file: str
    settings: DeltaSettings
    target_name: str | None
    """None: the changes are for somebody else to process, and there is nothing to run here."""
    state_name: str
    upstreams: tuple[Upstream, ...]
    pattern: Pattern | None
    root: Path
    _alerts: tuple[str, ...] | None
    _connections: Connections = field(repr=False)

    @property
    def target(self) -> DeltaTarget | None:
        if self.target_name is None:
            return None
        model = self._connections.target(self.target_name)
        return model if isinstance(model, DeltaTarget) else None

    @property
    def folder(self) -> Path:
        """Where a project keeps what it can make again; not for version control."""
        return self.root / ".tidegate"

    @property
    def alert_names(self) -> tuple[str, ...]:
        """Who is told when something is wrong: everybody, unless the pipeline chooses."""
        return tuple(self._connections.names(Section.ALERTS)) if self._alerts is None else self._alerts

    def alert(self, name: str) -> AlertReceiver:
        return self._connections.alert(name)

    @property
    def state(self) -> StateStore:
        return self._connections.state(self.state_name)


def read_delta_pipeline(
    document: Document, connections: Connections, variables: Variables, root: Path
) -> DeltaPipeline:
    """Read and check one file; everything wrong in it is reported at once."""
    reading = _Reading(Binder(document, variables, root), connections)
    file, upstreams, pattern = reading.parts()
    if reading.problems or file is None:
        raise config_error(reading.problems)
    state = file.pipeline.state or connections.default_state("")
    assert state is not None  # or it would be a problem
    return DeltaPipeline(
        name=file.pipeline.name,
        file=document.file,
        settings=_settings(file),
        target_name=file.pipeline.target,
        state_name=state,
        upstreams=upstreams,
        pattern=pattern,
        root=root,
        _alerts=file.pipeline.alerts,
        _connections=connections,
    )


@dataclass
class _Reading:
    binder: Binder
    connections: Connections
    problems: list[Problem] = field(default_factory=list)

    def parts(self) -> tuple[DeltaFile | None, tuple[Upstream, ...], Pattern | None]:
        values = self.binder.values(())
        self.problems += [*self.binder.document.problems, *values.missing]
        bound = self.binder.fit(DeltaFile, (), values)
        self.problems += bound.problems
        data = values.data.get("upstreams") if isinstance(values.data, dict) else None
        if bound.model is None or not isinstance(data, dict):
            return None, (), None
        self._references(bound.model)
        if any(isinstance(data.get(key), str) for key in ("from", "schema")):
            return bound.model, (), self._pattern(data, bound.model, values)
        upstreams = tuple(self._upstreams(data, bound.model, values))
        if not data:
            self._say(("upstreams",), "there is no upstream in it")
        self._demand_own_targets(upstreams, bound.model)
        return bound.model, upstreams, None

    def _upstreams(self, data: dict[str, Any], file: DeltaFile, values: Values) -> Iterator[Upstream]:
        for name, value in data.items():
            here: KeyPath = ("upstreams", name)
            bound = self.binder.fit(UpstreamOptions, here, Values(value or {}, unknown=values.unknown))
            self.problems += bound.problems
            if bound.model is None:
                continue
            options = bound.model
            made = _upstream(options, file, options.keys or ())
            self._demand_keys(here, made, file)
            target = options.target_name or name.rpartition(".")[2]
            yield replace(made, name=name, place=options.path, table=options.table, target_name=target)

    def _pattern(self, data: dict[str, Any], file: DeltaFile, values: Values) -> Pattern | None:
        here: KeyPath = ("upstreams",)
        bound = self.binder.fit(FoundUpstreams, here, Values(data, unknown=values.unknown))
        self.problems += bound.problems
        if bound.model is None:
            return None
        like = _upstream(bound.model, file, bound.model.keys or ())
        self._demand_keys(here, like, file)
        return Pattern(bound.model.from_, bound.model.schema_, bound.model.exclude or (), like)

    def _demand_keys(self, here: KeyPath, upstream: Upstream, file: DeltaFile) -> None:
        if file.pipeline.target is None or file.transform is not None or upstream.keys:
            return
        if upstream.write_mode is DeltaMode.MERGE:
            hint = "name the columns that tell rows apart, or say `write_mode: history`"
            self._say(here, "`keys` is missing: changes are merged by them", hint)
        elif upstream.without_feed is WithoutFeed.DIFF:
            hint = "name them, or say `without_feed: refuse`"
            self._say(here, "`keys` is missing: without a change feed, versions are compared by them", hint)

    def _demand_own_targets(self, upstreams: tuple[Upstream, ...], file: DeltaFile) -> None:
        if file.transform is not None:
            return
        seen: dict[str, str] = {}
        for upstream in upstreams:
            other = seen.setdefault(upstream.target_name.casefold(), upstream.name)
            if other != upstream.name:
                message = f"goes into the same target table as `{other}`; give it another `target_name`"
                self._say(("upstreams", upstream.name), f"`{upstream.name}` {message}")

    def _references(self, file: DeltaFile) -> None:
        target, state = file.pipeline.target, file.pipeline.state
        if target is not None:
            self._demand(Section.TARGET, target)
        if target is not None and self.connections.entries[Section.TARGET].get(target):
            kind = self.connections.kind(Section.TARGET, target)
            if kind != KIND:
                message = f"changes of Delta tables go into Delta tables, and `{target}` is of type {kind}"
                self._say(("pipeline", "target"), message)
        self._demand(Section.STATE, state or self.connections.default_state(""))
        for alert in file.pipeline.alerts or ():
            self._demand(Section.ALERTS, alert)
        if file.targets and file.transform is None:
            self._say(
                ("targets",), "`targets` says how a transformation is written, and there is no `transform`"
            )
        if file.transform and ":" not in file.transform:
            self._say(("transform",), "expected a module and a function in it, such as my_project.gold:build")

    def _demand(self, section: Section, name: str | None) -> None:
        known = self.connections.names(section)
        if name is None:
            self._say(("pipeline",), f"`{section.value}` is missing: it could be any of {listed(known)}")
        elif name not in known:
            hint = f"{self.connections.document.file} has {listed(known)}"
            near = did_you_mean(name, known)
            self._say(("pipeline", section.value), f"there is no {section.value} `{name}`{near}", hint)

    def _say(self, path: KeyPath, message: str, hint: str | None = None) -> None:
        self.problems.append(self.binder.document.problem(path, message, hint=hint))


def _upstream(near: UpstreamChoices, far: UpstreamChoices, keys: tuple[str, ...]) -> Upstream:
    """What the upstream says, else the pipeline, else what is built in."""
    return Upstream(
        name="",
        keys=keys,
        first_run=start_of(near.first_run or far.first_run),
        write_mode=near.write_mode or far.write_mode or DeltaMode.MERGE,
        deletes=near.deletes or far.deletes or Deletes.HARD,
        without_feed=near.without_feed or far.without_feed or WithoutFeed.DIFF,
    )


def _settings(file: DeltaFile) -> DeltaSettings:
    return DeltaSettings(
        align=file.align is not None,
        lag=file.lag,
        on_planned=OnPlanned(file.on_planned),
        transform=file.transform,
        targets=_targets(file.targets),
        all_or_nothing=file.all_or_nothing,
        on_schema_change=OnSchemaChange(file.on_schema_change),
        max_parallel=file.max_parallel,
        limits=Limits(file.check.stuck_after, file.check.missing_after, file.check.failures),
    )


def _targets(targets: Mapping[str, DeltaTargetOptions]) -> dict[str, TransformTarget]:
    return {
        name: TransformTarget(
            options.keys or (), options.write_mode or ("merge" if options.keys else "append")
        )
        for name, options in targets.items()
    }

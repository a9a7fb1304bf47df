"""What the file of a pipeline of kind delta may say, key by key."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from tidegate.config.kinds import Duration, Model, Moment, Name, Names, Place, Text
from tidegate.config.upstreams import Deletes, DeltaMode, FirstRun, WithoutFeed


class FirstRunOptions(Model):
    kind: FirstRun | None = None
    """What stands for itself: `first_run: snapshot`."""
    version: Annotated[int, Field(ge=0)] | None = None
    timestamp: Moment | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> FirstRunOptions:
        if [self.kind, self.version, self.timestamp].count(None) != 2:  # noqa: PLR2004 - all but one
            raise ValueError("give `version` or `timestamp`, and not both")
        if self.timestamp is not None and self.timestamp.tzinfo is None:
            raise ValueError("`timestamp` needs a zone, such as 2025-01-01 00:00:00+00:00")
        return self


def _first_run(value: Any) -> Any:
    if isinstance(value, str) and value in tuple(FirstRun):
        return {"kind": value}
    if isinstance(value, dict | FirstRunOptions):
        return value
    raise ValueError("expected `snapshot`, `full_history`, {version: N} or {timestamp: T}")


class UpstreamChoices(Model):
    """What a pipeline says for all of its upstreams and an upstream for itself."""

    first_run: Annotated[FirstRunOptions, BeforeValidator(_first_run)] | None = None
    write_mode: DeltaMode | None = None
    deletes: Deletes | None = None
    without_feed: WithoutFeed | None = None


class UpstreamOptions(UpstreamChoices):
    path: Place | None = None
    table: Text | None = None
    keys: Names | None = None
    target_name: Text | None = None

    @model_validator(mode="after")
    def _one_place(self) -> UpstreamOptions:
        if (self.path is None) == (self.table is None):
            raise ValueError("give `path`, or `table` for one of a catalog, and not both")
        return self


class FoundUpstreams(UpstreamChoices):
    """Upstreams that are found: all Delta tables that a pattern of folders leads to, or that a schema has."""

    from_: Annotated[Place | None, Field(alias="from")] = None
    schema_: Annotated[Text | None, Field(alias="schema")] = None
    """A schema of a catalog, such as `main.silver`."""
    exclude: Names | None = None
    keys: Names | None = None

    @model_validator(mode="after")
    def _found_in_one_way(self) -> FoundUpstreams:
        if (self.from_ is None) == (self.schema_ is None):
            raise ValueError("give `from`, or `schema` for the tables of a catalog, and not both")
        return self


class DeltaTargetOptions(Model):
    """How what a transformation returns is written."""

    keys: Names | None = None
    write_mode: Literal["merge", "append", "replace"] | None = None

    @model_validator(mode="after")
    def _keys_to_merge_by(self) -> DeltaTargetOptions:
        if self.write_mode == "merge" and not self.keys:
            raise ValueError("`write_mode: merge` needs `keys`")
        return self


class CheckOptions(Model):
    stuck_after: Duration = timedelta(hours=6)
    missing_after: Duration | None = None
    failures: Annotated[int, Field(ge=1, le=1000)] = 3


class DeltaOptions(Model):
    """The section `pipeline` of such a file."""

    name: Name
    kind: Literal["delta"] = "delta"
    target: Text | None = None
    state: Text | None = None
    alerts: Names | None = None
    version: Any = None
    description: str | None = None


class DeltaFile(UpstreamChoices):
    """The whole file; its upstreams are read one by one."""

    pipeline: DeltaOptions
    upstreams: dict[str, Any]
    align: Literal["commit_timestamp"] | None = None
    lag: Duration = timedelta(seconds=1)
    on_planned: Literal["resume", "alert"] = "resume"
    transform: Text | None = None
    targets: dict[str, DeltaTargetOptions] = Field(default_factory=dict)
    all_or_nothing: bool = False
    on_schema_change: Literal["evolve", "stop", "rebaseline"] = "evolve"
    max_parallel: Annotated[int, Field(ge=1, le=1000)] = 4
    check: CheckOptions = Field(default_factory=CheckOptions)


def start_of(said: FirstRunOptions | None) -> FirstRun | int | datetime:
    """Where the first run begins."""
    if said is None:
        return FirstRun.SNAPSHOT
    if said.version is not None:
        return said.version
    return said.timestamp or said.kind or FirstRun.SNAPSHOT

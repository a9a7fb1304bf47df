"""The contents of connections.yml: sources, targets, staging areas, stores, and the Spark to run on.

What the file says wrongly is an error at once. A variable that is not defined is an error for whoever asks
for the entry that needs it: a machine that runs one pipeline need not know the passwords of all the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from tidegate.config.alerts import AlertReceiver
from tidegate.config.binding import Binder, Bound, Values, found, found_word
from tidegate.config.connection_models import (
    ConnectionsFile,
    LocalStaging,
    LocalState,
    S3Config,
    S3Staging,
    S3State,
    SourceConnection,
    SparkOptions,
    StagingArea,
    StateStore,
    TargetConnection,
    by_type,
)
from tidegate.config.kinds import Model
from tidegate.config.loading import Document, Fields, Scalar
from tidegate.config.problems import KeyPath, Problem, config_error
from tidegate.config.secrets import Providers
from tidegate.config.spelling import did_you_mean, listed
from tidegate.config.variables import Variables
from tidegate.core.errors import UsageError

Inference = Callable[[Mapping[str, Any]], str | None]
"""The type that is meant where an entry names none."""


class Section(Enum):
    """What a name can be the name of."""

    SOURCE = "source"
    TARGET = "target"
    STAGING = "staging"
    STATE = "state"
    ALERTS = "alert"


@dataclass(frozen=True)
class Entry:
    """A named part of connections.yml; `path` is empty for what nobody wrote."""

    path: KeyPath
    bound: Bound[Any]
    kind: str | None = None
    """Its `type`."""
    read_again: Callable[[], Bound[Any]] | None = field(default=None, repr=False, compare=False)
    """Reads it with its secrets; None where it has none that are kept elsewhere."""

    @cached_property
    def whole(self) -> Bound[Any]:
        """With all its secrets. Whoever asks for it makes us ask their providers, once."""
        return self.read_again() if self.bound.deferred and self.read_again else self.bound


@dataclass(frozen=True)
class Connections:
    document: Document
    entries: Mapping[Section, Mapping[str, Entry]]
    spark_options: Entry
    older_states: Mapping[str, str]
    """The store that belongs to a staging area of `s3_configs`."""
    primaries: Mapping[str, str]
    """The source that shows what is open on the primary, for sources that are replicas."""

    def names(self, section: Section) -> list[str]:
        return list(self.entries[section])

    def source(self, name: str) -> SourceConnection:
        return cast("SourceConnection", self.get(Section.SOURCE, name))

    def target(self, name: str) -> TargetConnection:
        return cast("TargetConnection", self.get(Section.TARGET, name))

    def staging(self, name: str) -> StagingArea:
        return cast("StagingArea", self.get(Section.STAGING, name))

    def state(self, name: str) -> StateStore:
        return cast("StateStore", self.get(Section.STATE, name))

    def alert(self, name: str) -> AlertReceiver:
        return cast("AlertReceiver", self.get(Section.ALERTS, name))

    @property
    def spark(self) -> SparkOptions:
        return cast("SparkOptions", _demand(self.spark_options.whole))

    def missing_variables(self) -> list[Problem]:
        """Also what is wrong with secrets: whoever asks for this makes us ask for all of them."""
        wholes = [entry.whole for entry in (*self._named(), self.spark_options)]
        return [problem for bound in wholes for problem in (*bound.problems, *bound.missing)]

    def models(self) -> list[Model]:
        """Everything whose variables are all defined, and whose secrets need not be asked for."""
        return [entry.bound.model for entry in self._named() if entry.bound.model is not None]

    def default_staging(self) -> str | None:
        """The staging area of a pipeline that names none; None if it has to say which."""
        return _only(self.names(Section.STAGING))

    def default_state(self, staging: str) -> str | None:
        """The store of a pipeline that names none; None if it has to say which."""
        derived = set(self.older_states.values())
        own = [name for name in self.names(Section.STATE) if name not in derived]
        written = [name for name in own if self.entries[Section.STATE][name].path]
        if not written and staging in self.older_states:
            return self.older_states[staging]
        return _only(own)

    def get(self, section: Section, name: str) -> Model:
        entry = self.entries[section].get(name)
        if entry is None:
            near = did_you_mean(name, self.names(section))
            hint = f"there are {listed(self.names(section))}"
            raise UsageError(f"there is no {section.value} `{name}`{near}", hint=hint)
        return cast("Model", _demand(entry.whole))

    def kind(self, section: Section, name: str) -> str | None:
        """The `type` of an entry, also where its variables or secrets are missing."""
        return self.entries[section][name].kind

    def _named(self) -> list[Entry]:
        return [entry for section in self.entries.values() for entry in section.values()]


def _only(names: list[str]) -> str | None:
    if "default" in names:
        return "default"
    return names[0] if len(names) == 1 else None


def _demand(bound: Bound[Any]) -> Any:
    if bound.model is None:
        raise config_error([*bound.problems, *bound.missing])
    return bound.model


def read_connections(document: Document, variables: Variables, root: Path) -> Connections:
    """Read all of the file; everything wrong in it is reported at once. Secrets are left for later."""
    asking = variables.asking(Providers(root))
    reader = _Reader(Binder(document, variables, root), Binder(document, asking, root))
    whole = reader.binder.bind(ConnectionsFile, ())
    entries = {
        Section.SOURCE: reader.section(("connections", "sources"), SourceConnection, _source_type),
        Section.TARGET: reader.section(("connections", "targets"), TargetConnection, _target_type),
        Section.STAGING: reader.section(("staging",), StagingArea, _no_type),
        Section.STATE: reader.section(("state",), StateStore, _no_type),
        Section.ALERTS: reader.section(("alerts",), AlertReceiver, _no_type),
    }
    older = reader.older(entries)
    entries[Section.STAGING] = entries[Section.STAGING] or _built_in(LocalStaging(path=root / "staging"))
    if all(name in older.values() for name in entries[Section.STATE]):
        # An `s3_configs` entry called `default` keeps its own state: the built-in one never takes its place.
        entries[Section.STATE] = _built_in(LocalState(path=root / "state")) | entries[Section.STATE]
    primaries = dict(reader.primaries(entries[Section.SOURCE]))
    problems = [*document.problems, *whole.problems, *reader.problems]
    if problems:
        raise config_error(problems)
    spark = reader.entry(("spark",), lambda binder: binder.bind(SparkOptions, ("spark",)))
    return Connections(document, entries, spark, older, primaries)


def _built_in(model: Model) -> dict[str, Entry]:
    return {"default": Entry((), Bound(model), getattr(model, "type", None))}


@dataclass
class _Reader:
    binder: Binder
    asking: Binder
    """The same, asking for secrets."""
    problems: list[Problem] = field(default_factory=list)

    def entry(
        self, path: KeyPath, read: Callable[[Binder], Bound[Any]], model: type[Model] | None = None
    ) -> Entry:
        kind = model.model_fields["type"].default if model else None
        return Entry(path, read(self.binder), kind, lambda: read(self.asking))

    def section(self, path: KeyPath, union: Any, infer: Inference) -> dict[str, Entry]:
        models = by_type(union)
        names = _names(self.binder.document, path)
        return {name: self._entry((*path, name), models, infer) for name in names}

    def _entry(self, path: KeyPath, models: dict[str, type[Model]], infer: Inference) -> Entry:
        values = self.binder.values(path)
        model = self._model(path, values, models, infer)
        self.problems += values.problems
        if model is None:
            return Entry(path, Bound(None, (), tuple(values.missing)))
        chosen = model
        entry = self.entry(path, lambda binder: binder.fit(chosen, path, binder.values(path)), chosen)
        self.problems += [problem for problem in entry.bound.problems if problem not in values.problems]
        return entry

    def _model(
        self, path: KeyPath, values: Values, models: dict[str, type[Model]], infer: Inference
    ) -> type[Model] | None:
        """The model that `type:` names, or that is meant where older files have no type."""
        if not isinstance(values.data, dict):
            self._say(path, f"expected keys and values, found {found(self.binder.document.node(path))}")
            return None
        given = values.data.get("type")
        kind = infer(values.data) if given is None else given
        if isinstance(kind, str) and kind in models:
            return models[kind]
        if (*path, "type") not in values.unknown:
            self._say_type(path, list(models), absent=kind is None)
        return None

    def _say_type(self, path: KeyPath, kinds: list[str], *, absent: bool) -> None:
        if absent:
            self._say(path, f"`type` is missing: one of {listed(kinds)}")
            return
        node = self.binder.document.node((*path, "type"))
        near = did_you_mean(node.text, kinds) if isinstance(node, Scalar) and node.text else ""
        self._say((*path, "type"), f"expected one of {listed(kinds)}, found {found_word(node)}{near}")

    def older(self, entries: Mapping[Section, dict[str, Entry]]) -> dict[str, str]:
        """Add what `s3_configs` stands for; returns which store belongs to which staging area."""
        beside = {}
        for name in _names(self.binder.document, ("s3_configs",)):
            path: KeyPath = ("s3_configs", name)
            staging = self.entry(path, _read_as(path, S3Config.staging), S3Staging)
            self.problems += staging.bound.problems
            if name in entries[Section.STAGING]:
                self._say(path, f"`{name}` is also the name of an entry of `staging`")
            entries[Section.STAGING][name] = staging
            if name not in entries[Section.STATE]:
                entries[Section.STATE][name] = self.entry(path, _read_as(path, S3Config.state), S3State)
                beside[name] = name
        return beside

    def primaries(self, sources: Mapping[str, Entry]) -> Iterator[tuple[str, str]]:
        for name, entry in sources.items():
            path = (*entry.path, "ceiling", "primary")
            primary = self.binder.values(path).data
            if isinstance(primary, str) and primary:
                wrong = wrong_primary(sources, name, primary)
                if wrong:
                    self._say(path, wrong)
                yield name, primary

    def _say(self, path: KeyPath, message: str) -> None:
        self.problems.append(self.binder.document.problem(path, message))


def wrong_primary(sources: Mapping[str, Entry], replica: str, primary: str) -> str | None:
    """Why `primary` cannot be the primary of `replica`, if it cannot."""
    if primary == replica:
        return "a source cannot be its own primary"
    if primary not in sources:
        near = did_you_mean(primary, sources)
        return f"there is no source `{primary}`{near or f'; there are {listed(sources)}'}"
    kinds = [sources[name].kind for name in (replica, primary)]
    if None not in kinds and (kinds[0] != kinds[1] or "sqlite" in kinds):
        return f"a {kinds[1]} source cannot be the primary of a {kinds[0]} source"
    return None


def _read_as(path: KeyPath, part: Callable[[S3Config], Model]) -> Callable[[Binder], Bound[Any]]:
    def read(binder: Binder) -> Bound[Any]:
        bound = binder.bind(S3Config, path)
        model = part(bound.model) if bound.model else None
        return Bound(model, bound.problems, bound.missing, bound.deferred)

    return read


def _names(document: Document, path: KeyPath) -> list[str]:
    node = document.node(path)
    return list(node.fields) if isinstance(node, Fields) else []


def _source_type(data: Mapping[str, Any]) -> str | None:
    """Older files name no type: they knew MySQL alone."""
    if data.get("host") is None:
        return None
    return "postgresql" if data.get("port") == "5432" else "mysql"


def _target_type(data: Mapping[str, Any]) -> str | None:
    """Older files name no type: they knew Redshift alone."""
    if data.get("host") is None:
        return None
    return "postgresql" if data.get("port") == "5432" else "redshift"


def _no_type(data: Mapping[str, Any]) -> str | None:  # noqa: ARG001 - these never went without
    return None

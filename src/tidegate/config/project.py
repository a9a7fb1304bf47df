"""A project: the folder that holds `config/`, and everything that is said in there.

    project = Project.find(Path.cwd())
    pipeline = project.pipeline("shop")
    settings = pipeline.settings_for("orders")

Loading reads every file, since two pipelines of one name would share their marks. It checks connections.yml
and leaves each pipeline to be checked when it is asked for; `validate` checks all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidegate.config.binding import Binder
from tidegate.config.connection_models import SparkOptions
from tidegate.config.connections import Connections, Section, read_connections
from tidegate.config.deltas import KIND as DELTA
from tidegate.config.deltas import DeltaPipeline, read_delta_pipeline
from tidegate.config.loading import Document, Scalar, read_document
from tidegate.config.pipelines import Pipeline, read_pipeline
from tidegate.config.problems import ConfigProblems, Problem, config_error
from tidegate.config.secrets import Providers
from tidegate.config.showing import secrets_in, shown
from tidegate.config.spelling import did_you_mean, listed
from tidegate.config.variables import Variables, read_variables
from tidegate.core.errors import ConfigError, TidegateError, UsageError

__all__ = ["Pipeline", "Project"]

_SUFFIXES = (".yml", ".yaml")


@dataclass(frozen=True)
class Project:
    root: Path
    connections: Connections = field(repr=False)
    _variables: Variables = field(repr=False)
    _documents: Mapping[str, Document] = field(repr=False)
    """The pipelines' files, by the names of the pipelines."""

    @classmethod
    def load(cls, path: Path, environ: Mapping[str, str] | None = None) -> Project:
        """Load the project in a folder; `environ` stands in for the process environment."""
        root = _root(path)
        variables = read_variables(root / ".env", os.environ if environ is None else environ)
        problems: list[Problem] = []
        documents = dict(_pipelines(root, variables, problems))
        connections: Connections | None = None
        try:
            file = _connections_file(root)
            connections = read_connections(read_document(file, _label(file, root)), variables, root)
        except ConfigProblems as error:
            problems += error.problems
        if problems or connections is None:
            raise config_error(problems)
        return cls(root, connections, variables, documents)

    @classmethod
    def find(cls, start: Path, environ: Mapping[str, str] | None = None) -> Project:
        """Load the project that `start` lies in: the nearest folder above it with our `config/`."""
        folder = start.absolute()
        for candidate in (folder, *folder.parents):
            if _is_project(candidate):
                return cls.load(candidate, environ)
        raise _no_project(f"there is no project in {folder} or in any folder above it")

    @property
    def pipelines(self) -> tuple[str, ...]:
        """The names of all pipelines, in the order of their files."""
        return tuple(self._documents)

    @property
    def spark(self) -> SparkOptions:
        return self.connections.spark

    @property
    def syncs(self) -> tuple[str, ...]:
        """The names of those that move tables from a source to a warehouse."""
        return tuple(name for name in self.pipelines if not self.is_delta(name))

    @property
    def deltas(self) -> tuple[str, ...]:
        """The names of those that follow Delta tables."""
        return tuple(name for name in self.pipelines if self.is_delta(name))

    def is_delta(self, name: str) -> bool:
        kind = self._documents[self.named(name)].node(("pipeline", "kind"))
        return isinstance(kind, Scalar) and kind.text == DELTA

    def pipeline(self, name: str) -> Pipeline:
        """A pipeline by its name, or by its file's name without the ending."""
        document = self._documents[self.named(name)]
        if self.is_delta(name):
            hint = "`tidegate delta` plans and runs it"
            raise UsageError(f"`{name}` is a pipeline of kind delta", where=document.file, hint=hint)
        return read_pipeline(document, self.connections, self._asking, self.root)

    def delta_pipeline(self, name: str) -> DeltaPipeline:
        """The same, for one of kind delta."""
        document = self._documents[self.named(name)]
        if not self.is_delta(name):
            hint = "`tidegate sync` runs it"
            raise UsageError(f"`{name}` is no pipeline of kind delta", where=document.file, hint=hint)
        return read_delta_pipeline(document, self.connections, self._asking, self.root)

    @property
    def _asking(self) -> Variables:
        return self._variables.asking(Providers(self.root))

    def validate(self) -> None:
        """Raise everything that is wrong in any file, and every variable that is not defined, at once."""
        problems = self.connections.missing_variables()
        for name in self.pipelines:
            try:
                self.delta_pipeline(name) if self.is_delta(name) else self.pipeline(name)
            except ConfigProblems as error:
                problems += error.problems
        if problems:
            raise config_error(problems)

    def secrets(self) -> frozenset[str]:
        """Every secret that is known, for those who write logs: none of them may ever appear there."""
        models = [*self.connections.models(), self.connections.spark_options.bound.model]
        return frozenset(text for model in models if model is not None for text in secrets_in(model))

    def describe(self) -> dict[str, Any]:
        """The whole configuration as it applies, with secrets hidden; a problem stands in its place."""
        sections = {section: self._section(section) for section in Section}
        return {
            "root": str(self.root),
            "connections": {"sources": sections[Section.SOURCE], "targets": sections[Section.TARGET]},
            "staging": sections[Section.STAGING],
            "state": sections[Section.STATE],
            "alerts": sections[Section.ALERTS],
            "spark": _shown_or_problem(lambda: self.spark),
            "pipelines": {name: _shown_or_problem(self._pipeline, name) for name in self.pipelines},
        }

    def _section(self, section: Section) -> dict[str, Any]:
        names = self.connections.names(section)
        return {name: _shown_or_problem(self.connections.get, section, name) for name in names}

    def _delta_pipeline(self, name: str) -> dict[str, Any]:
        pipeline = self.delta_pipeline(name)
        return {
            "file": pipeline.file,
            "kind": DELTA,
            "target": pipeline.target_name,
            "state": pipeline.state_name,
            "settings": pipeline.settings,
            "upstreams": {upstream.name: upstream for upstream in pipeline.upstreams},
            "found": pipeline.pattern,
        }

    def _pipeline(self, name: str) -> dict[str, Any]:
        if self.is_delta(name):
            return self._delta_pipeline(name)
        pipeline = self.pipeline(name)
        return {
            "file": pipeline.file,
            "source": pipeline.source_name,
            "primary": pipeline.primary_name,
            "target": pipeline.target_name,
            "staging": pipeline.staging_name,
            "state": pipeline.state_name,
            "alerts": pipeline.alert_names,
            "processing": pipeline.processing,
            "mercy": pipeline.options.mercy,
            "job": pipeline.job,
            "tables": {table: pipeline.settings_for(table) for table in pipeline.tables},
        }

    def named(self, name: str) -> str:
        """The name of the pipeline that somebody calls so: by its name, or by its file's."""
        if name in self._documents:
            return name
        by_stem = [known for known, document in self._documents.items() if _stem(document) == name]
        if len(by_stem) == 1:
            return by_stem[0]
        if by_stem:
            raise UsageError(
                f"`{name}` is the file name of {listed(by_stem)}", hint="use the pipeline's name"
            )
        stems = [_stem(document) for document in self._documents.values()]
        near = did_you_mean(name, [*self.pipelines, *stems])
        raise UsageError(f"there is no pipeline `{name}`{near}", hint=f"there are {listed(self.pipelines)}")


def _shown_or_problem(part: Callable[..., Any], *arguments: object) -> Any:
    try:
        return shown(part(*arguments))
    except TidegateError as error:
        return {"problem": str(error)}


def _root(path: Path) -> Path:
    """The project's folder, given it, its `config/` or a file in there."""
    folder = path.absolute()
    if folder.is_file():
        folder = folder.parent
    if (folder / "config").is_dir():
        return folder
    if folder.name == "config" and _is_project(folder.parent):
        return folder.parent
    raise _no_project(f"there is no project in {folder}: it has no folder `config`")


def _no_project(message: str) -> ConfigError:
    return ConfigError(message, hint="`tidegate init` writes one, `--project DIR` names another folder")


def _is_project(folder: Path) -> bool:
    config = folder / "config"
    return (
        any((config / f"connections{suffix}").exists() for suffix in _SUFFIXES)
        or (config / "pipelines").is_dir()
    )


def _connections_file(root: Path) -> Path:
    found = [path for suffix in _SUFFIXES if (path := root / "config" / f"connections{suffix}").exists()]
    if len(found) == 1:
        return found[0]
    both = "there are connections.yml and connections.yaml: keep one of them"
    hint = None if found else "`tidegate init` writes one to begin with"
    raise config_error(
        [Problem("config/connections.yml", 0, 0, both if found else "the file is missing", hint)]
    )


def _pipelines(root: Path, variables: Variables, problems: list[Problem]) -> Iterator[tuple[str, Document]]:
    """Every file that could be read, with its pipeline's name. What went wrong is added to `problems`."""
    owners: dict[str, str] = {}
    for path in _pipeline_files(root):
        try:
            document = read_document(path, _label(path, root))
            name = _pipeline_name(Binder(document, variables, root))
        except ConfigProblems as error:
            problems += error.problems
            continue
        # Ignoring case, because not every store can tell `Shop` from `shop`.
        other = owners.setdefault(name.casefold(), document.file)
        if other == document.file:
            yield name, document
        else:
            message = f"{other} has a pipeline of this name too, and they would share their marks"
            problems.append(document.problem(("pipeline", "name"), message))


def _pipeline_files(root: Path) -> list[Path]:
    folder = root / "config" / "pipelines"
    if not folder.is_dir():
        return []
    visible = [path for path in folder.iterdir() if path.suffix in _SUFFIXES and path.name[0] != "."]
    return sorted(visible)


def _pipeline_name(binder: Binder) -> str:
    values = binder.values(("pipeline", "name"))
    problems = [*values.problems, *values.missing]
    if not problems and not (isinstance(values.data, str) and values.data):
        message = "`name` is missing: its marks are kept under it"
        problems = [*binder.document.problems, binder.document.problem(("pipeline",), message)]
    if problems:
        raise config_error(problems)
    return str(values.data)


def _label(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def _stem(document: Document) -> str:
    return Path(document.file).stem

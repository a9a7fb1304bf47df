"""A pipeline: what is synced from where to where, and the settings of each of its tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tidegate.config.alerts import AlertReceiver
from tidegate.config.binding import Binder, Values
from tidegate.config.connection_models import (
    LocalStaging,
    LocalState,
    RedshiftTarget,
    SourceConnection,
    StagingArea,
    StateStore,
    TargetConnection,
)
from tidegate.config.connections import Connections, Section, wrong_primary
from tidegate.config.jobs import JobOptions
from tidegate.config.loading import Document
from tidegate.config.mappings import ColumnMappings
from tidegate.config.pipeline_models import PipelineFile, PipelineOptions, TableOptions
from tidegate.config.problems import KeyPath, Problem, config_error
from tidegate.config.resolving import mercy_of, resolve, unsuitable
from tidegate.config.settings import COPIED_BY_REDSHIFT, Mercy, Processing, TableSettings
from tidegate.config.spelling import did_you_mean, is_pattern, listed, matches
from tidegate.config.variables import Variables
from tidegate.core.errors import UsageError
from tidegate.core.names import NameRules, rules_for
from tidegate.core.strategies import WriteMode


@dataclass(frozen=True)
class Pipeline:
    """One file of config/pipelines, checked."""

    name: str
    file: str
    options: PipelineOptions
    source_name: str
    target_name: str
    staging_name: str
    state_name: str
    primary_name: str | None
    """The source whose open transactions decide, where the source is a replica."""
    job: JobOptions | None
    _tables: Mapping[str, TableOptions] = field(repr=False)
    _document: Document = field(repr=False)
    _connections: Connections = field(repr=False)
    _root: Path = field(repr=False)

    @property
    def source(self) -> SourceConnection:
        return self._connections.source(self.source_name)

    @property
    def primary(self) -> SourceConnection | None:
        if self.primary_name is None:
            return None
        return self._connections.source(self.primary_name)

    @property
    def target(self) -> TargetConnection:
        return self._connections.target(self.target_name)

    @property
    def staging(self) -> StagingArea:
        return self._connections.staging(self.staging_name)

    @property
    def state(self) -> StateStore:
        return self._connections.state(self.state_name)

    @property
    def alert_names(self) -> tuple[str, ...]:
        """Who is told when something is wrong: everybody, unless the pipeline chooses."""
        chosen = self.options.alerts
        return tuple(self._connections.names(Section.ALERTS)) if chosen is None else chosen

    def alert(self, name: str) -> AlertReceiver:
        return self._connections.alert(name)

    @property
    def demanded_job(self) -> JobOptions:
        """The pipeline's job, where there has to be one."""
        if self.job is None:
            raise UsageError(
                f"pipeline `{self.name}` has no job", where=self.file, hint="write one in `job:`"
            )
        return self.job

    @property
    def writer(self) -> SourceConnection:
        """The connection under which a job deletes temporary rows."""
        return self._connections.source(self.demanded_job.write_connection)

    @property
    def root(self) -> Path:
        """The folder that holds `config/`."""
        return self._root

    @property
    def tables(self) -> tuple[str, ...]:
        """The names and patterns of the file, in its order."""
        return tuple(self._tables)

    @property
    def has_patterns(self) -> bool:
        """Whether an entry can stand for several tables: only then is the source's list of them needed."""
        return bool(self._patterns)

    @property
    def processing(self) -> Processing:
        said, built_in = self.options.processing, Processing()
        return Processing(
            strategy=said.strategy or built_in.strategy,
            max_parallel_tables=said.max_parallel_tables or built_in.max_parallel_tables,
            timeout_minutes=said.timeout_minutes,
        )

    @property
    def mercy(self) -> Mercy:
        """What the source is spared."""
        return mercy_of(self.options.mercy, self.source.mercy)

    @property
    def name_rules(self) -> NameRules:
        """What the target lets names be; it need not be usable for that."""
        return rules_for(self._connections.kind(Section.TARGET, self.target_name) or "")

    @property
    def folder(self) -> Path:
        """Where a project keeps what it can make again; not for version control."""
        return self._root / ".tidegate"

    @property
    def mappings(self) -> ColumnMappings:
        return ColumnMappings(self._root, self.name)

    def settings_for(self, table: str) -> TableSettings:
        """The settings of a table: its own entry's, else those of the first pattern that it matches."""
        options = self._tables[self._entry(table)]
        settings = resolve(table, options, self.options)
        # A name that somebody chose is theirs; one that comes from the source is made safe for the target.
        name = options.target_name or self.name_rules.safe_table(settings.target_name)
        lossy = replace(
            settings.lossy,
            source=self._connections.kind(Section.SOURCE, self.source_name) or "",
            target=self._connections.kind(Section.TARGET, self.target_name) or "",
        )
        emptied = self.job is not None and table in (self.job.tables or self._tables)
        return replace(
            settings, target_name=name, names=self.mappings.of(table), lossy=lossy, emptied=emptied
        )

    def expand(self, available: Iterable[str], wanted: Iterable[str] = ()) -> list[str]:
        """The tables to sync, in the order of the file, given the tables that the source has.

        `wanted` keeps those that are named or matched by one of its patterns. A name of the file is kept
        whether or not the source has it: its absence is an error of that table alone.
        """
        names = list(available)
        chosen = list(
            dict.fromkeys(table for entry in self._tables for table in self._expanded(entry, names))
        )
        asked = list(wanted)
        if asked:
            chosen = list(dict.fromkeys(table for name in asked for table in self._asked(name, chosen)))
        self._demand_own_targets(chosen)
        return chosen

    def unmatched(self, available: Iterable[str]) -> list[str]:
        """Patterns that no table of the source matches: harmless, but perhaps not what was meant."""
        names = list(available)
        return [entry for entry in self._patterns if not any(matches(entry, name) for name in names)]

    @property
    def _patterns(self) -> tuple[str, ...]:
        return tuple(name for name in self._tables if is_pattern(name))

    def _expanded(self, entry: str, names: list[str]) -> list[str]:
        if not is_pattern(entry) or entry in names:
            return [entry]
        return [name for name in names if matches(entry, name) and self._entry(name) == entry]

    def _asked(self, name: str, chosen: list[str]) -> list[str]:
        """What a user means by a name or pattern, among the tables of the pipeline."""
        if name in chosen or not is_pattern(name):
            # One that only a pattern stands for need not be in the source's list: the source shall say so.
            self._entry(name)
            return [name]
        found = [table for table in chosen if matches(name, table)]
        if not found:
            raise UsageError(f"no table of pipeline `{self.name}` matches `{name}`", where=self.file)
        return found

    def _entry(self, table: str) -> str:
        if table in self._tables:
            return table
        for entry in self._patterns:
            if matches(entry, table):
                return entry
        near = did_you_mean(table, self._tables)
        raise UsageError(
            f"pipeline `{self.name}` has no table `{table}`{near}",
            where=self.file,
            hint=f"it has {listed(self._tables)}",
        )

    def _demand_own_targets(self, tables: list[str]) -> None:
        pairs = [(name, self.settings_for(name).target_name, self._entry(name)) for name in tables]
        problems = [
            self._document.problem(("tables", entry), message)
            for name, message, entry in _shared_targets(pairs)
        ]
        if problems:
            raise config_error(problems)


def read_pipeline(document: Document, connections: Connections, variables: Variables, root: Path) -> Pipeline:
    """Read and check one file; everything wrong in it is reported at once."""
    reading = _Reading(Binder(document, variables, root), connections)
    options, tables = reading.parts()
    names = reading.references(options, tables) if options else {}
    job = reading.job(options, tables)
    if reading.problems or options is None:
        raise config_error(reading.problems)
    return Pipeline(
        name=options.name,
        file=document.file,
        options=options,
        source_name=options.source,
        target_name=options.target,
        staging_name=names["staging"],
        state_name=names["state"],
        primary_name=reading.primary(options),
        job=job,
        _tables=tables,
        _document=document,
        _connections=connections,
        _root=root,
    )


@dataclass
class _Reading:
    binder: Binder
    connections: Connections
    problems: list[Problem] = field(default_factory=list)

    def parts(self) -> tuple[PipelineOptions | None, dict[str, TableOptions]]:
        """The pipeline's own options and those of its tables."""
        values = self.binder.values(())
        self.problems += [*self.binder.document.problems, *values.missing]
        whole = self.binder.fit(PipelineFile, (), values)
        self.problems += whole.problems
        data = values.data if isinstance(values.data, dict) else {}
        head = Values(data.get("pipeline"), unknown=values.unknown)
        options = self.binder.fit(PipelineOptions, ("pipeline",), head).model
        tables = self._tables(data.get("tables"), values.unknown)
        self.problems += self._table_problems(tables, options or _guess(head.data))
        return options, tables

    def _tables(self, data: Any, unknown: set[KeyPath]) -> dict[str, TableOptions]:
        found = {}
        for name, value in (data if isinstance(data, dict) else {}).items():
            values = Values({} if value is None else value, unknown=unknown)
            bound = self.binder.fit(TableOptions, ("tables", name), values)
            self.problems += bound.problems
            if bound.model:
                found[name] = bound.model
        if data == {}:
            self._say(("tables",), "there is no table in it")
        return found

    def _table_problems(
        self, tables: Mapping[str, TableOptions], options: PipelineOptions
    ) -> Iterator[Problem]:
        document = self.binder.document
        sound = []
        for name, table in tables.items():
            wrong = list(unsuitable(name, table, options))
            for place, message, hint in wrong:
                yield document.problem(place, message, hint=hint)
            if not wrong and not is_pattern(name):
                sound.append((name, resolve(name, table, options).target_name, name))
        for name, message, _ in _shared_targets(sound):
            yield document.problem(("tables", name), message)

    def references(self, options: PipelineOptions, tables: Mapping[str, TableOptions]) -> dict[str, str]:
        """What the pipeline refers to exists; staging and state may be left to the default."""
        self._demand(Section.SOURCE, options.source)
        self._demand(Section.TARGET, options.target)
        staging = options.staging or self.connections.default_staging()
        names = {"staging": self._demand(Section.STAGING, staging)}
        state = options.state or self.connections.default_state(names["staging"])
        names["state"] = self._demand(Section.STATE, state)
        for index, alert in enumerate(options.alerts or ()):
            self._demand(Section.ALERTS, alert, ("pipeline", "alerts", index))
        wrong = self._wrong_primary(options)
        if wrong:
            self._say(("pipeline", "ceiling", "primary"), wrong)
        self._check_layouts(options.target, tables)
        self._check_compression(options)
        if not self.problems:
            self._keep_apart(names["staging"], names["state"])
            self._within_reach(options.target, names["staging"])
        return names

    def job(self, options: PipelineOptions | None, tables: Mapping[str, TableOptions]) -> JobOptions | None:
        """The pipeline's job, if it has one; what it refers to exists."""
        values = self.binder.values(("job",))
        if values.data is None:
            return None
        bound = self.binder.fit(JobOptions, ("job",), values)
        self.problems += bound.problems
        if bound.model is not None and options is not None:
            self._check_job(bound.model, options, tables)
        return bound.model

    def _check_job(
        self, job: JobOptions, options: PipelineOptions, tables: Mapping[str, TableOptions]
    ) -> None:
        self._demand(Section.SOURCE, job.write_connection, ("job", "write_connection"))
        sources = self.connections.entries[Section.SOURCE]
        kinds = {sources[name].kind for name in (options.source, job.write_connection) if name in sources}
        if len(kinds) > 1:
            self._say(("job", "write_connection"), "it is of another type than the pipeline's source")
        for name in job.tables or tables:
            if is_pattern(name):
                self._say(("job",), f"`{name}` is a pattern; name the temporary tables in `job.tables`")
            elif name not in tables:
                near = did_you_mean(name, tables)
                self._say(("job", "tables"), f"the pipeline has no table `{name}`{near}")

    def primary(self, options: PipelineOptions) -> str | None:
        if options.ceiling.primary:
            return options.ceiling.primary
        return self.connections.primaries.get(options.source)

    def _wrong_primary(self, options: PipelineOptions) -> str | None:
        sources = self.connections.entries[Section.SOURCE]
        if not options.ceiling.primary or options.source not in sources:
            return None
        return wrong_primary(sources, options.source, options.ceiling.primary)

    def _demand(self, section: Section, name: str | None, path: KeyPath = ()) -> str:
        known = self.connections.names(section)
        path = path or ("pipeline", section.value)
        if name is None:
            self._say(("pipeline",), f"`{section.value}` is missing: it could be any of {listed(known)}")
        elif name not in known:
            near = did_you_mean(name, known)
            where = self.connections.document.file
            hint = f"{where} has {listed(known)}"
            self._say(path, f"there is no {section.value} `{name}`{near}", hint)
        return name or ""

    def _keep_apart(self, staging: str, state: str) -> None:
        """Cleaning a staging area must never find state in it."""
        files = self.connections.entries[Section.STAGING][staging].bound.model
        marks = self.connections.entries[Section.STATE][state].bound.model
        if not isinstance(files, LocalStaging) or not isinstance(marks, LocalState):
            return
        if _overlap(files.path, marks.path):
            message = f"staging `{staging}` and state `{state}` lie in the same folder or one in the other"
            self._say(
                ("pipeline",), message, f"give each a folder of its own in {self.connections.document.file}"
            )

    def _check_layouts(self, target: str, tables: Mapping[str, TableOptions]) -> None:
        """How one kind of target lays out a table means nothing to another."""
        entry = self.connections.entries[Section.TARGET].get(target)
        kind = entry.kind if entry else None
        for name, table in tables.items():
            for section, said in (("delta", table.delta), ("redshift", table.redshift)):
                if said.model_fields_set and kind not in (section, None):
                    message = f"it is for targets of type {section}, and `{target}` is of type {kind}"
                    self._say(("tables", name, section), message, "leave it out")

    def _check_compression(self, options: PipelineOptions) -> None:
        """Otherwise the files would be found out only when they are to be loaded."""
        entry, chosen = self.connections.entries[Section.TARGET].get(options.target), options.s3.compression
        if entry is None or entry.kind != "redshift" or chosen in (None, *COPIED_BY_REDSHIFT):
            return
        message = f"Redshift's COPY does not read Parquet files that are compressed with {chosen}"
        self._say(("pipeline", "s3", "compression"), message, "use snappy or gzip, or none")

    def _within_reach(self, target: str, staging: str) -> None:
        """Redshift reads staged files by itself, and it can read S3 only."""
        warehouse = self.connections.entries[Section.TARGET][target].bound.model
        files = self.connections.entries[Section.STAGING][staging].bound.model
        if isinstance(warehouse, RedshiftTarget) and isinstance(files, LocalStaging):
            message = f"Redshift loads from S3, and staging `{staging}` is a local folder"
            self._say(("pipeline", "staging"), message, "give the pipeline a `staging` of type s3")

    def _say(self, path: KeyPath, message: str, hint: str | None = None) -> None:
        self.problems.append(self.binder.document.problem(path, message, hint=hint))


def _guess(head: Any) -> PipelineOptions:
    """What a wrong pipeline section says for its tables, so that they can be checked all the same."""
    said = head.get("write_mode") if isinstance(head, dict) else None
    mode = said if said in tuple(WriteMode) else None
    return PipelineOptions(name="-", source="-", target="-", write_mode=mode)


def _overlap(one: Path, other: Path) -> bool:
    first, second = one.resolve(), other.resolve()
    return first.is_relative_to(second) or second.is_relative_to(first)


def _shared_targets(tables: Iterable[tuple[str, str, str]]) -> Iterator[tuple[str, str, str]]:
    """Tables that would go into the same target table; case is no difference in many warehouses."""
    seen: dict[str, str] = {}
    for name, target, entry in tables:
        other = seen.setdefault(target.casefold(), name)
        if other != name:
            message = f"goes into the same target table as `{other}`; give it another `target_name`"
            yield name, f"`{name}` {message}", entry

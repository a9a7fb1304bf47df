"""Processing a plan: the data first, and when that is in the target, the marks.

The order that must never be broken: plan, write with the plan's number, then complete. A crash between the
data and the mark is recognised by the number that the target remembers; then only the mark is missing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.config.upstreams import NEW, DeltaMode, TransformTarget, Upstream
from tidegate.core.errors import (
    ConfigError,
    IncompatibleTable,
    SourceError,
    StateError,
    TidegateError,
    UsageError,
)
from tidegate.core.secrecy import hidden
from tidegate.core.watermark import Event
from tidegate.delta.changes import TWICE, Range, changes, net
from tidegate.delta.lake import Continuity, Lake, Stamp
from tidegate.delta.library import DeltaPlans
from tidegate.delta.places import is_same
from tidegate.delta.plan import FAILED, SKIPPED, Plan, PlannedUpstream
from tidegate.delta.streams import together
from tidegate.spark.delta import apart, demand_delta, spoken
from tidegate.spark.session import LazySession

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Transform = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Outcome:
    """What became of an upstream."""

    name: str
    rows: int = 0
    error: str | None = None
    into: tuple[str, ...] = ()
    """The tables that have it now."""


@dataclass
class Processing:
    """One run of a pipeline's plans."""

    plans: DeltaPlans
    session: LazySession
    lake: Lake
    say: Callable[[str], None] = lambda _: None
    _upstreams: dict[str, Upstream] = field(default_factory=dict)

    def run(self, *, resume: bool | None = None) -> Plan:
        """Process the plan that is open, then plan and process what is new. Returns the last plan."""
        with self.plans.streams.alone():
            left = self.plans.current_plan()
            plan = self.plans.prepare(resume=resume)
            if plan.run_id is None:
                return plan
            done = self.process(plan)
            if left is None or done.status != "COMPLETED":
                return done
            fresh = self.plans.prepare()
            if fresh.run_id is None:
                return fresh if fresh.status == FAILED else done  # one that is stuck must not pass for done
            return self.process(fresh)

    def process(self, plan: Plan) -> Plan:
        """Process one plan. What failed is recorded, with its error."""
        assert plan.run_id is not None
        self._upstreams = self.plans.upstreams()
        work = plan.work
        self.plans.start(plan.run_id, [item.name for item in work])
        for note in plan.notes:
            self.say(note)
        outcomes = self._transformed(plan) if self.plans.settings.transform else self._each(plan, work)
        failed = [outcome for outcome in outcomes if outcome.error is not None]
        for outcome in failed:
            self.plans.fail(plan.run_id, str(outcome.error), names=[outcome.name])
        if not failed or not self.plans.settings.joint:
            good = {outcome.name: outcome for outcome in outcomes if outcome.error is None}
            rows = {name: outcome.rows for name, outcome in good.items()}
            into = {name: outcome.into for name, outcome in good.items()}
            return self.plans.complete(plan.run_id, rows, names=list(good), into=into)  # the marks move here
        found = self.plans.current_plan()
        assert found is not None
        return found

    # --- Upstream by upstream --------------------------------------------------------

    def _each(self, plan: Plan, work: Sequence[PlannedUpstream]) -> list[Outcome]:
        session = self._spark()  # in this thread: which session is the active one is a thread's own matter
        with spoken(session):
            return together(lambda item: self._one(plan, item), list(work), self.plans.settings.max_parallel)

    def _one(self, plan: Plan, item: PlannedUpstream) -> Outcome:
        try:
            rows = self._brought(plan, item)
            return Outcome(item.name, rows, into=(self._upstream(item).target_name,))
        except Exception as error:  # noqa: BLE001 - it is recorded as the upstream's own failure
            return Outcome(item.name, error=self._in_words(error, item.name))

    def _brought(self, plan: Plan, item: PlannedUpstream) -> int:
        """Write the changes of one upstream, unless the target has them already."""
        upstream = self._upstream(item)
        stamp = self._stamp(plan, f"{plan.pipeline}/{item.name}", item.number, [item])
        table = upstream.target_name
        there = self.lake.rows_of(table, stamp)
        if there is not None:
            self.say(f"{item.name}: versions up to {item.end_version} are in the target already")
            return there
        history = upstream.write_mode is DeltaMode.HISTORY
        self._demand_another(table, [item])
        self._demand_before(table, stamp, [item])
        last = self.lake.last_of(table, stamp)
        if history:
            self._demand_unknown(table, last, [item])
        self._demand_not_taken_back(table, stamp, last, [item])
        session = apart(self._spark())
        part = Range(upstream, item, self.plans.place(upstream))
        frame = changes(session, part) if history else net(session, part)
        self.plans.streams.check()
        self.lake.apply(table, frame, upstream, stamp, _continuity(item, last))  # the data lands here
        return self.lake.rows_of(table, stamp) or 0

    def _upstream(self, item: PlannedUpstream) -> Upstream:
        if item.name not in self._upstreams:
            raise SourceError(
                "it is planned, and no upstream of the pipeline any more",
                where=item.name,
                hint="name it again; or if nobody needs it, `tidegate delta complete` ends the plan",
            )
        return self._upstreams[item.name]

    def _demand_another(self, table: str, items: Sequence[PlannedUpstream]) -> None:
        """What is written into a table that is followed would be a change of it, to be written again."""
        target = self.lake.place(table)
        for item in items:
            if is_same(target, self.plans.place(self._upstream(item))):
                raise IncompatibleTable(
                    f"it is the upstream `{item.name}` itself",
                    where=target,
                    hint="give the upstream another `target_name`, or the target another folder",
                )

    def _demand_before(self, table: str, stamp: Stamp, items: Sequence[PlannedUpstream]) -> None:
        """Changes are brought into a table that has what was there before.

        What a transformation makes can be new at any time, so there the history has to tell of it.
        """
        begun = [item for item in items if item.processed is not None]
        if not begun or self.lake.is_own(table, stamp):
            return
        there, known = self.lake.is_there(table), self._went_into(table, begun)
        if not known and (there or self.plans.settings.transform):
            return
        names = " ".join(f"--rebaseline {item.name}" for item in items)
        what = "is another one than before" if there else "is not there"
        raise IncompatibleTable(
            f"the table {what}, and versions up to {begun[0].processed} were brought into it",
            where=self.lake.place(table),
            hint=f"put it back, or `tidegate delta plan -p {self.plans.pipeline} {names}` makes it anew",
        )

    def _demand_unknown(self, table: str, last: Mapping[str, Any], items: Sequence[PlannedUpstream]) -> None:
        """Rows that are appended a second time are there twice.

        A target that has versions which are to come, by a run that was never recorded as done, says that the
        marks were lost, are those of an older day, or were moved by somebody who could not know of it.
        """
        versions: dict[str, list[int | None]] = last.get("versions") or {}
        again = [item for item in items if _overlaps(item, versions.get(item.name))]
        if not again or self._was_completed(last.get("number"), versions):
            return
        [name, (_, end)] = again[0].name, versions[again[0].name]
        raise StateError(
            f"it has versions of `{name}` up to {end} already, by a run that was never recorded as done",
            where=self.lake.place(table),
            hint=f"the mark was lost, moved or is an older one: `tidegate watermark set "
            f"-p {self.plans.pipeline} -t {name} --id {end}` goes on after them",
        )

    def _demand_not_taken_back(
        self, table: str, stamp: Stamp, last: Mapping[str, Any], items: Sequence[PlannedUpstream]
    ) -> None:
        """Changes follow on what was brought before, unless the mark was moved back as the table was."""
        follows = [item for item in items if _continuity(item, last) is Continuity.NEXT]
        to = self.lake.taken_back_to(table, stamp) if follows else None
        if to is None:
            return
        names = " ".join(f"--rebaseline {item.name}" for item in items)
        raise IncompatibleTable(
            f"the table was restored to {to} after versions up to {follows[0].low} were brought into it",
            where=self.lake.place(table),
            hint=f"`tidegate watermark rollback` takes the mark back too, or "
            f"`tidegate delta plan -p {self.plans.pipeline} {names}` makes the table anew",
        )

    def _was_completed(self, number: Any, names: Iterable[str]) -> bool:
        """Whether a run was recorded as done. Then what comes again was decided by hand."""
        return any(event.data.get("run") == number for event in self._completed(names))

    def _went_into(self, table: str, items: Iterable[PlannedUpstream]) -> bool:
        """Whether the history tells of versions that were brought into a table."""
        return any(table in event.data.get("into", ()) for event in self._completed(i.name for i in items))

    def _completed(self, names: Iterable[str]) -> Iterator[Event]:
        for name in names:
            yield from (e for e in self.plans.streams.history(name, None) if e.kind == "completed")

    def _stamp(self, plan: Plan, name: str, number: int, items: Sequence[PlannedUpstream]) -> Stamp:
        versions = {item.name: [item.start_version, item.end_version] for item in items}
        return Stamp(f"tidegate:{name}", number, {"run_id": plan.run_id, "versions": versions})

    def _in_words(self, error: Exception, name: str) -> str:
        lost = None if isinstance(error, TidegateError) else self.session.lost(error)
        return _in_words(lost or error, name)

    def _spark(self) -> Any:
        session = self.session.get()
        demand_delta(session)
        return session

    # --- All together, through a transformation ----------------------------------------

    def _transformed(self, plan: Plan) -> list[Outcome]:
        mine = (item for item in plan.upstreams if item.run_id == plan.run_id)
        items = [item for item in mine if item.status != SKIPPED]  # one that was moved by hand is out of it
        try:
            with spoken(self._spark()):
                brought = self._brought_together(plan, items)
        except Exception as error:  # noqa: BLE001 - it is recorded as the failure of the whole plan
            return [Outcome(item.name, error=self._in_words(error, "UPSTREAM")) for item in plan.work]
        first, *rest = plan.work
        rows, into = sum(brought.values()), tuple(brought)
        return [Outcome(first.name, rows, into=into), *(Outcome(item.name, into=into) for item in rest)]

    def _brought_together(self, plan: Plan, items: Sequence[PlannedUpstream]) -> dict[str, int]:
        """How many rows each table has been given."""
        session = apart(self._spark())
        frames = {item.name: self._frame(session, item) for item in items}
        made = _demand_frames(self._transform()(frames))
        number = max(item.number for item in items)
        brought = {}
        for table, frame in made.items():
            stamp = self._stamp(plan, f"{plan.pipeline}>{table}", number, items)
            there = self.lake.rows_of(table, stamp)
            if there is None:
                self._demand_another(table, items)
                manner = self.plans.settings.targets.get(table, TransformTarget())
                if manner.write_mode != "replace":
                    self._demand_before(table, stamp, items)
                last = self.lake.last_of(table, stamp)
                if manner.write_mode == "append":
                    self._demand_unknown(table, last, items)
                if manner.write_mode != "replace":
                    self._demand_not_taken_back(table, stamp, last, items)
                self.plans.streams.check()
                self.lake.write(table, frame, manner, stamp)  # the data lands here
                there = self.lake.rows_of(table, stamp)
            brought[table] = there or 0
        return brought

    def _frame(self, session: Any, item: PlannedUpstream) -> DataFrame:
        """The net effect by key, or where no keys are named, every change."""
        upstream = self._upstream(item)
        part = Range(upstream, item, self.plans.place(upstream))
        return net(session, part).drop(NEW) if upstream.keys else changes(session, part)

    def _transform(self) -> Transform:
        said = str(self.plans.settings.transform)
        module, _, name = said.partition(":")
        root = self.plans.config.root if self.plans.config else None
        try:
            with _importable(root):
                found = getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"the transformation `{said}` cannot be had: {error}",
                hint="modules beside config/ and installed packages are found",
            ) from error
        made: Transform = found
        return made


def _continuity(item: PlannedUpstream, last: Mapping[str, Any]) -> Continuity:
    if item.snapshot:
        return Continuity.WHOLE
    brought = (last.get("versions") or {}).get(item.name)
    return Continuity.NEXT if brought and brought[1] == item.low else Continuity.UNSURE


def _overlaps(item: PlannedUpstream, brought: Sequence[int | None] | None) -> bool:
    if brought is None:
        return False
    if item.snapshot:
        return not item.asked_for
    end = brought[1]
    return end is not None and item.start_version is not None and end >= item.start_version


@contextmanager
def _importable(root: Path | None) -> Iterator[None]:
    """Modules that lie beside `config/` can be imported meanwhile."""
    added = [str(root)] if root is not None else []
    sys.path[:0] = added
    try:
        yield
    finally:
        for path in added:
            sys.path.remove(path)


def _demand_frames(made: Any) -> dict[str, Any]:
    if not isinstance(made, dict) or not all(isinstance(name, str) for name in made):
        raise UsageError(
            f"the transformation returned {type(made).__name__}", hint="return a dict of DataFrames by target"
        )
    return made


def _in_words(error: Exception, name: str) -> str:
    """What went wrong, in one line; what Spark says is long, and its first line tells."""
    if isinstance(error, TidegateError):
        return hidden(str(error))
    text = str(error)
    if TWICE in text:
        said = text[text.index(TWICE) :].splitlines()[0].partition("SQLSTATE")[0]
        return said.removeprefix("tidegate: ").strip()
    first = _told(text)
    if any(sign in text for sign in ("FILE_NOT_FOUND", "FILE_NOT_EXIST", "FileNotFound")):
        advice = f"`tidegate delta plan --rebaseline {name}` reads the whole table again"
        return hidden(f"files of these versions are gone, VACUUM has taken them: {first[:300]}; {advice}")
    return hidden(f"{type(error).__name__}: {first[:500]}")


def _told(text: str) -> str:
    """The line that tells. Where Java raised, the first one names a call, and the last cause tells."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines or not lines[0].startswith("An error occurred while calling"):
        return lines[0] if lines else ""
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return [*lines[:2], *causes][-1].removeprefix(": ")


def processing_of(
    plans: DeltaPlans, session: LazySession, say: Callable[[str], None] = lambda _: None
) -> Processing:
    """What processes the plans of a configured pipeline."""
    target = plans.config.target if plans.config else None
    if target is None:
        raise UsageError(
            "the pipeline has no target, so its plans are for others to process",
            where=plans.pipeline,
            hint="name a target of type delta, or process what `tidegate delta plan` shows and complete it",
        )
    return Processing(plans, session, Lake.of(target), say)

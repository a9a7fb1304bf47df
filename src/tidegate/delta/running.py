"""Processing a plan: the data first, and when that is in the target, the marks.

The order that must never be broken: plan, write with the plan's number, then complete. A crash between the
data and the mark is recognised by the number that the target remembers; then only the mark is missing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.config.upstreams import DeltaMode, TransformTarget, Upstream
from tidegate.core.errors import (
    ConfigError,
    IncompatibleTable,
    SourceError,
    StateError,
    TidegateError,
    UsageError,
)
from tidegate.core.secrecy import hidden
from tidegate.delta.changes import TWICE, Range, changes, net
from tidegate.delta.lake import Lake, Stamp
from tidegate.delta.library import DeltaPlans
from tidegate.delta.plan import Plan, PlannedUpstream
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
            return self.process(fresh) if fresh.run_id is not None else done

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
            good = {outcome.name: outcome.rows for outcome in outcomes if outcome.error is None}
            return self.plans.complete(plan.run_id, good, names=list(good))  # the marks move here
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
            return Outcome(item.name, self._brought(plan, item))
        except Exception as error:  # noqa: BLE001 - it is recorded as the upstream's own failure
            return Outcome(item.name, error=_in_words(error))

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
        self._demand_before(table, item)
        if history:
            self._demand_unknown(table, stamp, [item])
        session = apart(self._spark())
        part = Range(upstream, item, self.plans.place(upstream))
        frame = changes(session, part) if history else net(session, part)
        self.plans.streams.check()
        self.lake.apply(table, frame, upstream, stamp, whole=item.snapshot)  # the data lands here
        return self.lake.rows_of(table, stamp) or 0

    def _upstream(self, item: PlannedUpstream) -> Upstream:
        if item.name not in self._upstreams:
            raise SourceError(
                "it is planned, and no upstream of the pipeline any more",
                where=item.name,
                hint="name it again; or if nobody needs it, `tidegate delta complete` ends the plan",
            )
        return self._upstreams[item.name]

    def _demand_before(self, table: str, item: PlannedUpstream) -> None:
        """Changes are brought into a table that has what was there before."""
        if item.processed is None or item.snapshot or self.lake.is_there(table):
            return
        raise IncompatibleTable(
            f"the table is not there, and versions up to {item.processed} were brought into it",
            where=self.lake.place(table),
            hint=f"`tidegate delta plan --rebaseline {item.name}` makes it anew, if nobody puts it back",
        )

    def _demand_unknown(self, table: str, stamp: Stamp, items: Sequence[PlannedUpstream]) -> None:
        """Rows that are appended a second time are there twice.

        A target that has versions which are to come, by a run that the marks know nothing of, says that the
        marks were lost or are those of an older day.
        """
        last = self.lake.last_of(table, stamp)
        if last is None:
            return
        versions: dict[str, list[int | None]] = last.get("versions") or {}
        again = [item for item in items if _overlaps(item, versions.get(item.name))]
        if not again or self._knows(last.get("number"), versions):
            return
        [name, (_, end)] = again[0].name, versions[again[0].name]
        raise StateError(
            f"it has versions of `{name}` up to {end} already, by a run that the marks know nothing of",
            where=self.lake.place(table),
            hint=f"the state was lost or is an older one: `tidegate watermark set -p {self.plans.pipeline} "
            f"-t {name} --id {end}` goes on after them",
        )

    def _knows(self, number: Any, names: Iterable[str]) -> bool:
        """Whether the history tells of a run. Then what comes again was decided by hand."""
        pasts = (self.plans.streams.history(name, None) for name in names)
        return any(event.data.get("run") == number for past in pasts for event in past)

    def _stamp(self, plan: Plan, name: str, number: int, items: Sequence[PlannedUpstream]) -> Stamp:
        versions = {item.name: [item.start_version, item.end_version] for item in items}
        return Stamp(f"tidegate:{name}", number, {"run_id": plan.run_id, "versions": versions})

    def _spark(self) -> Any:
        session = self.session.get()
        demand_delta(session)
        return session

    # --- All together, through a transformation ----------------------------------------

    def _transformed(self, plan: Plan) -> list[Outcome]:
        items = [item for item in plan.upstreams if item.run_id == plan.run_id]
        try:
            with spoken(self._spark()):
                rows = self._brought_together(plan, items)
        except Exception as error:  # noqa: BLE001 - it is recorded as the failure of the whole plan
            return [Outcome(item.name, error=_in_words(error)) for item in plan.work]
        first, *rest = plan.work
        return [Outcome(first.name, rows), *(Outcome(item.name) for item in rest)]

    def _brought_together(self, plan: Plan, items: Sequence[PlannedUpstream]) -> int:
        session = apart(self._spark())
        frames = {item.name: self._frame(session, item) for item in items}
        made = _demand_frames(self._transform()(frames))
        number = max(item.number for item in items)
        total = 0
        for table, frame in made.items():
            stamp = self._stamp(plan, f"{plan.pipeline}>{table}", number, items)
            there = self.lake.rows_of(table, stamp)
            if there is None:
                manner = self.plans.settings.targets.get(table, TransformTarget())
                if manner.write_mode == "append":
                    self._demand_unknown(table, stamp, items)
                self.plans.streams.check()
                self.lake.write(table, frame, manner, stamp)  # the data lands here
                there = self.lake.rows_of(table, stamp)
            total += there or 0
        return total

    def _frame(self, session: Any, item: PlannedUpstream) -> DataFrame:
        """The net effect by key, or where no keys are named, every change."""
        upstream = self._upstream(item)
        part = Range(upstream, item, self.plans.place(upstream))
        return net(session, part) if upstream.keys else changes(session, part)

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


def _in_words(error: Exception) -> str:
    """What went wrong, in one line; what Spark says is long, and its first line tells."""
    if isinstance(error, TidegateError):
        return hidden(str(error))
    text = str(error)
    if TWICE in text:
        said = text[text.index(TWICE) :].splitlines()[0].partition("SQLSTATE")[0]
        return said.removeprefix("tidegate: ").strip()
    if any(sign in text for sign in ("FILE_NOT_FOUND", "FILE_NOT_EXIST", "FileNotFound")):
        missing = next((line for line in text.splitlines() if line.strip()), "")
        return hidden(f"files of these versions are gone, VACUUM has taken them: {missing[:300]}")
    first = next((line for line in text.splitlines() if line.strip()), "")
    return hidden(f"{type(error).__name__}: {first[:500]}")


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

"""Making a plan: the open one again, or a new one of all that is new.

A plan is written stream by stream. Where its upstreams belong together, each record says how many they are: a
plan that was not written to its end is none. Nobody has seen it, so it is made anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property

from tidegate.config.upstreams import DeltaSettings, OnPlanned, Upstream
from tidegate.core import direct, transitions
from tidegate.core.errors import SourceError, StateError
from tidegate.core.records import VERSION_CURSOR
from tidegate.core.transitions import Step
from tidegate.core.watermark import RunKind, Watermark
from tidegate.delta.plan import has_failed, is_planned, newest_id, run_id_of, stream_of, torn
from tidegate.delta.planning import Blocked, Outlook, Question, Range, look
from tidegate.delta.streams import Change, Streams, there, together

_TICK = timedelta(milliseconds=1)
"""What Delta's commit times are told in."""


@dataclass(frozen=True)
class Prepared:
    """Which plan there is now, and what the streams' records have become."""

    run_id: str | None
    """None: nothing was new."""
    marks: Mapping[str, Watermark]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Preparing:
    """One act of planning, under the pipeline's lease."""

    settings: DeltaSettings
    streams: Streams
    chosen: Mapping[str, Upstream]
    marks: Mapping[str, Watermark]
    place: Callable[[Upstream], str]
    clock: Callable[[], datetime] = field(kw_only=True)
    token: Callable[[], str] = field(kw_only=True)

    def prepared(self, rebaseline: frozenset[str], *, resume: bool | None) -> Prepared:
        planned = [name for name in self.chosen if is_planned(self._whole(name))]
        failed = [name for name in self.chosen if has_failed(self._whole(name))]
        if planned and not rebaseline:
            if not (failed and self.settings.joint):  # or else the plan as a whole has failed
                self._demand_resume(planned, resume)
            return self._again(newest_id(self.marks, planned), failed)
        if failed and self.settings.joint and not rebaseline:
            return self._again(newest_id(self.marks, failed), failed)
        return self._new([name for name in (*planned, *failed) if name not in rebaseline], rebaseline)

    # --- The open plan -------------------------------------------------------------

    @cached_property
    def _torn(self) -> frozenset[str]:
        return torn(self.marks)

    def _whole(self, name: str) -> Watermark | None:
        """The record of a stream, unless it is part of no plan that counts."""
        return None if name in self._torn else self.marks.get(name)

    def _demand_resume(self, planned: list[str], resume: bool | None) -> None:  # noqa: FBT001
        wanted = self.settings.on_planned is OnPlanned.RESUME if resume is None else resume
        if not wanted:
            raise StateError(
                f"plan {newest_id(self.marks, planned)} was neither completed nor failed",
                where=self.streams.pipeline,
                hint="complete it, fail it, or run it: `tidegate delta run --resume`",
            )

    def _again(self, run_id: str, failed: Sequence[str]) -> Prepared:
        """What failed of the open plan is planned again as it was."""
        changed = retried(self.streams, self.marks, failed, run_id, self.clock)
        return Prepared(run_id, {**self.marks, **changed})

    # --- A new plan ------------------------------------------------------------------

    def _new(self, waiting: Sequence[str], rebaseline: frozenset[str]) -> Prepared:
        """A plan of what is new. What is left of others becomes a part of it, with its range as it was.

        Where upstreams belong together, the open plan stays the one there is, and nothing else joins it.
        """
        joined = newest_id(self.marks, waiting) if waiting and self.settings.joint else None
        asked = [name for name in self.chosen if name not in waiting and (not joined or name in rebaseline)]
        outlooks = self._outlooks(asked, rebaseline)
        self._demand_none_blocked(outlooks, alone=not waiting)
        run_id = joined or f"plan-{self.token()}"
        ranges = {name: found for name, found in outlooks.items() if isinstance(found, Range)}
        size = len(ranges) if self.settings.joint and not joined else None
        changes = {name: self._adopted(run_id) for name in waiting}
        changes |= {name: self._planned(name, run_id, size, found) for name, found in ranges.items()}
        changes |= {
            name: self._failing(name, found.error)
            for name, found in outlooks.items()
            if isinstance(found, Blocked)
        }
        marks = {**self.marks, **there(self.streams.change(changes))}
        mine = any(run_id_of(mark) == run_id for mark in marks.values())
        return Prepared(run_id if mine else None, marks, tuple(_notes(outlooks)))

    def _outlooks(self, names: Sequence[str], rebaseline: frozenset[str]) -> dict[str, Outlook]:
        """What comes next of each upstream, all of them seen at one moment if they are to be aligned.

        One that has to end before a change of its columns takes the others with it to that moment.
        """
        moment = self.clock() - self.settings.lag if self.settings.align else None
        asked = [self._question(name, moment, rebaseline) for name in names]
        notes: dict[str, str | None] = {}
        while True:
            found = dict(zip(names, together(look, asked), strict=True))
            cut = {name: seen for name, seen in found.items() if isinstance(seen, Range) and seen.before}
            notes = {**{name: seen.note for name, seen in cut.items()}, **notes}
            ends = [seen.before for seen in cut.values() if seen.before is not None]
            if moment is None or not ends or min(ends) > moment:
                return {name: _noted(seen, notes.get(name)) for name, seen in found.items()}
            moment = min(ends) - _TICK
            asked = [replace(question, moment=moment) for question in asked]

    def _question(self, name: str, moment: datetime | None, rebaseline: frozenset[str]) -> Question:
        upstream = self.chosen[name]
        policy = self.settings.on_schema_change
        mark = self.marks.get(name)
        again = name in rebaseline or self._was_to_be_read_whole(name)
        return Question(upstream, self.place(upstream), mark, policy, moment, rebaseline=again)

    def _was_to_be_read_whole(self, name: str) -> bool:
        """Whether a plan that was not written to its end was to begin again with it."""
        mark = self.marks.get(name)
        if name not in self._torn or mark is None or mark.manual is None:
            return False
        return mark.current_run.window.low is None

    def _demand_none_blocked(self, outlooks: Mapping[str, Outlook], *, alone: bool) -> None:
        """What is done together or not at all cannot be planned in part; and nothing at all is no plan."""
        blocked = {name: found.error for name, found in outlooks.items() if isinstance(found, Blocked)}
        if not blocked or not (self.settings.joint or (alone and len(blocked) == len(outlooks))):
            return
        self.streams.change({name: self._failing(name, error) for name, error in blocked.items()})
        raise next(iter(blocked.values()))

    # --- What becomes of a stream ------------------------------------------------------

    def _failing(self, name: str, error: SourceError) -> Change:
        def change(mark: Watermark | None) -> Step:
            known, before = self._free(name, mark)
            failed, events = transitions.fail(known, str(error), self.clock())
            return failed, (*before, *events)

        return change

    def _adopted(self, run_id: str) -> Change:
        def change(mark: Watermark | None) -> Step | None:
            if mark is None or (is_planned(mark) and run_id_of(mark) == run_id):
                return None
            return direct.retry(mark, self.clock(), run_id=run_id)

        return change

    def _planned(self, name: str, run_id: str, size: int | None, found: Range) -> Change:
        def change(mark: Watermark | None) -> Step:
            now = self.clock()
            known, before = self._free(name, mark)
            if found.rebaseline is not None:
                known, moved = transitions.move(
                    known, None, reason=f"rebaseline: {found.rebaseline}", now=now
                )
                before = (*before, *moved)
            noticed = transitions.schema_changed(known, found.metadata.fingerprint, found.changes, now)
            step, events = transitions.plan(
                known,
                run_id=run_id,
                kind=RunKind.DIRECT,
                window=found.window,
                now=now,
                cursor=VERSION_CURSOR,
                schema=found.schema,
                together=size,
                after=self._last_number,
            )
            return replace(step, last_error=None), (*before, *noticed, *events)

        return change

    @cached_property
    def _last_number(self) -> int:
        """That of the newest plan of any upstream.

        A table that several of them go into remembers only the largest, so whatever the clock says, what is
        planned now has a larger one.
        """
        return max((mark.runs for mark in self.marks.values()), default=0)

    def _free(self, name: str, mark: Watermark | None) -> Step:
        """The stream's record, without the window of a plan that was not written to its end."""
        now = self.clock()
        known = mark or transitions.new(stream_of(self.streams.pipeline, name), VERSION_CURSOR, now)
        if name not in self._torn:
            return known, ()
        return direct.skip(known, reason="its plan was not written to the end", now=now)


def retried(
    streams: Streams,
    marks: Mapping[str, Watermark],
    failed: Sequence[str],
    run_id: str,
    clock: Callable[[], datetime],
) -> dict[str, Watermark]:
    """Plan again, as it was, what failed of a plan."""

    def change(mark: Watermark | None) -> Step | None:
        return direct.retry(mark, clock()) if mark is not None and has_failed(mark) else None

    mine = [name for name in failed if run_id_of(marks[name]) == run_id]
    return there(streams.change(dict.fromkeys(mine, change)))


def _noted(outlook: Outlook, note: str | None) -> Outlook:
    return replace(outlook, note=note) if isinstance(outlook, Range) and note else outlook


def _notes(outlooks: Mapping[str, Outlook]) -> Iterator[str]:
    for name, seen in outlooks.items():
        if isinstance(seen, Range) and seen.note:
            yield f"{name}: {seen.note}"
        if isinstance(seen, Range) and seen.rebaseline:
            yield f"{name}: read whole again: {seen.rebaseline}"

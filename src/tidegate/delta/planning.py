"""What comes next of an upstream: which versions, or why none.

Looking reads the table's log and returns a value; nothing here writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from tidegate.config.upstreams import FirstRun, OnSchemaChange, Upstream, WithoutFeed
from tidegate.core.errors import SourceError, TidegateError
from tidegate.core.positions import Position
from tidegate.core.watermark import Watermark
from tidegate.core.windows import Window
from tidegate.delta.log import Commit, Metadata, TableLog
from tidegate.delta.plan import BEFORE_ALL, position_at, version_of


@dataclass(frozen=True)
class NothingNew:
    why: str = "nothing new"


@dataclass(frozen=True)
class Range:
    """A window to plan."""

    window: Window
    metadata: Metadata
    changes: tuple[str, ...] = ()
    """How the table's columns differ from those of the last plan."""
    rebaseline: str | None = None
    """Why the stream begins again, if it does."""
    note: str | None = None
    before: datetime | None = None
    """When the version was committed that the range has to end before, if there is one."""
    digest: str | None = None
    """What tells the commit of its last version from another's."""
    left: frozenset[str] = frozenset()
    """Columns that the table had once, and that targets still have."""

    @property
    def schema(self) -> tuple[str, dict[str, Any]]:
        """What the stream's record keeps of the table, as of the last version of the range."""
        end = {"version": version_of(self.window.high), "commit": self.digest, "left": sorted(self.left)}
        return self.metadata.fingerprint, {**self.metadata.to_json(), **end}


@dataclass(frozen=True)
class Blocked:
    """The upstream cannot be planned until somebody has decided."""

    error: SourceError


Outlook = NothingNew | Range | Blocked


@dataclass(frozen=True)
class Question:
    """What is to be known of an upstream."""

    upstream: Upstream
    place: str
    mark: Watermark | None
    policy: OnSchemaChange
    moment: datetime | None = None
    """End at the last commit before it."""
    rebaseline: bool = False


def look(question: Question) -> Outlook:
    """What comes next of one upstream."""
    try:
        log = TableLog.at(question.place)
        return _checked(question, log, _look(question, log))
    except (SourceError, OSError, ValueError, KeyError) as error:
        return Blocked(_in_words(error, question))


def _checked(question: Question, log: TableLog, found: Outlook) -> Outlook:
    """The range, with what is to be remembered of its last version, if its rows have the keys."""
    if not isinstance(found, Range):
        return found
    there = [name for name, _ in found.metadata.columns]
    missing = {key.casefold() for key in question.upstream.keys} - {name.casefold() for name in there}
    if missing:
        message = f"it has no column {', '.join(f'`{name}`' for name in sorted(missing))}, which `keys` names"
        hint = f"its columns are {', '.join(there)}"
        return Blocked(SourceError(message, where=question.upstream.name, hint=hint))
    low, end = version_of(found.window.low), version_of(found.window.high)
    assert end is not None
    left: frozenset[str] = frozenset()
    if low is not None:
        before = _columns_at(low, question.mark, log)
        left = _left(question.mark, before)
        for commit in log.range(low, end):
            left, before = left | dropped(before, commit.metadata), commit.metadata or before
    return replace(found, digest=log.digest(end), left=left)


def _in_words(error: Exception, question: Question) -> SourceError:
    if isinstance(error, SourceError):
        return error
    text = error.message if isinstance(error, TidegateError) else f"{type(error).__name__}: {error}"
    return SourceError(f"the log of the table cannot be read: {text}", where=question.place)


def _look(question: Question, log: TableLog) -> Outlook:
    last = version_of(question.mark.extracted.position) if question.mark else None
    end = _end(question, log, last)
    if end is None:
        return NothingNew("no commit before the common moment")
    metadata = log.metadata(end)
    if question.rebaseline:
        return _whole(end, metadata, "asked for")
    if last is None:
        return _first(question, log, end, metadata)
    known = known_metadata(question.mark)
    if known is not None and known.table_id != metadata.table_id:
        reason = f"the table was made anew: its id was {known.table_id} and is {metadata.table_id}"
        return _decided(question, end, metadata, reason)
    if log.latest < last:
        reason = f"version {last} was processed, and the table is at {log.latest}: its history was rewritten"
        return _decided(question, end, metadata, reason)
    if _is_another(question.mark, log, last):
        reason = f"version {last} is not the one that was processed: its history was rewritten"
        return _decided(question, end, metadata, reason)
    if end <= last:
        return NothingNew()
    return _next(question, log, last, end)


def _end(question: Question, log: TableLog, last: int | None) -> int | None:
    if question.moment is None:
        return log.latest
    return log.last_before(question.moment, least=0 if last is None else min(last, log.latest))


def _first(question: Question, log: TableLog, end: int, metadata: Metadata) -> Outlook:
    """Where a stream begins."""
    start = question.upstream.first_run
    if start is FirstRun.SNAPSHOT:
        return Range(Window(None, Position.of(end)), metadata)
    if start is FirstRun.FULL_HISTORY:
        first: int | None = 0
    else:
        first = log.first_since(start) if isinstance(start, datetime) else int(start)
    if first is None or first > end:
        return NothingNew(f"waiting for {'version' if isinstance(start, int) else 'a commit since'} {start}")
    low = first - 1
    if log.gap(low, end) is not None or (low == BEFORE_ALL and not has_feed(log, log.range(low, end))):
        return _readable(question, log, low, end)
    # Whoever asks for what was has decided about its columns too: they are followed as far as that goes.
    return _changed(question, log, low, end, log.metadata(first), policy=OnSchemaChange.EVOLVE)


def _next(question: Question, log: TableLog, last: int, end: int) -> Outlook:
    """The versions after the last, up to a change of columns that has to be decided about first."""
    gap = log.gap(last, end)
    if gap is not None:
        return _unreadable(question, log, end, f"the commit of version {gap} was cleaned up")
    known = _columns_at(last, question.mark, log)
    changed = next(
        (c for c in log.range(last, end) if c.metadata and not c.metadata.same_columns(known)), None
    )
    if changed is None or changed.metadata is None:
        return _readable(question, log, last, end)
    if question.policy is OnSchemaChange.REBASELINE:
        changes = differences(known, log.metadata(end))
        return _decided(question, end, log.metadata(end), f"its columns changed: {', '.join(changes)}")
    return _changed(question, log, last, end, known, policy=question.policy)


def _changed(
    question: Question, log: TableLog, last: int, end: int, known: Metadata, *, policy: OnSchemaChange
) -> Outlook:
    """Follow the columns as far as the policy goes; what lies before the change is planned by itself.

    A change data feed cannot be read across a column that goes, so a range ends there under any policy.
    """
    before, left = known, _left(question.mark, known)
    for commit in log.range(last, end):
        if commit.metadata is None or commit.metadata.same_columns(before):
            continue
        back = left & {name for name, _ in commit.metadata.columns}
        left |= dropped(before, commit.metadata)
        follows = policy is OnSchemaChange.EVOLVE and compatible(before, commit.metadata) and not back
        first = commit.version == last + 1
        if not follows or (gone(before, commit.metadata) and not first):
            changes = ", ".join(differences(before, commit.metadata, back))
            what = f"its columns changed with version {commit.version}: {changes}"
            if first:
                return _decided(question, end, log.metadata(end), what)
            end = commit.version - 1
            found = _readable(question, log, last, end, changes=differences(known, before))
            return _ended(found, commit, what)
        before = commit.metadata
    return _readable(question, log, last, end, changes=differences(known, log.metadata(end)))


def _ended(outlook: Outlook, commit: Commit, why: str) -> Outlook:
    if not isinstance(outlook, Range):
        return outlook
    return replace(outlook, note=f"ends before version {commit.version}: {why}", before=commit.at)


def _readable(
    question: Question, log: TableLog, low: int, end: int, *, changes: tuple[str, ...] = ()
) -> Outlook:
    """The range, if all that it takes to read it is still there."""
    gap = log.gap(low, end)
    if gap is not None:
        return _unreadable(question, log, end, f"the commit of version {gap} was cleaned up")
    commits = list(log.range(low, end))
    feed = has_feed(log, commits)
    if not feed and question.upstream.without_feed is WithoutFeed.REFUSE:
        hint = "set delta.enableChangeDataFeed on it, or say `without_feed: diff`"
        message = f"its change data feed is not enabled from version {low + 1} to {end}"
        return Blocked(SourceError(message, where=question.place, hint=hint))
    if not feed and low > BEFORE_ALL and not log.can_rebuild(low):
        return _unreadable(question, log, end, f"version {low} cannot be compared with any more")
    needed = [path for commit in commits for path in (commit.feed if feed else commit.removed)]
    lost = log.lost(needed) if feed or low > BEFORE_ALL else None
    if lost is not None:
        return _unreadable(question, log, end, f"VACUUM has taken {lost}")
    return Range(Window(position_at(low), Position.of(end)), log.metadata(end), changes)


def has_feed(log: TableLog, commits: Iterable[Commit]) -> bool:
    """Whether every one of these kept a change data feed."""
    listed = list(commits)
    if not listed:
        return True
    told = [commit.metadata.feed for commit in listed if commit.metadata is not None]
    if listed[0].metadata is None:
        told.append(log.metadata(listed[0].version).feed)
    return all(told)


def _unreadable(question: Question, log: TableLog, end: int, why: str) -> Outlook:
    return _decided(
        question, end, log.metadata(end), f"versions that were not processed are unreadable: {why}"
    )


def _decided(question: Question, end: int, metadata: Metadata, reason: str) -> Outlook:
    """The stream cannot simply go on: begin again if that is the policy, or else say so."""
    if question.policy is OnSchemaChange.REBASELINE:
        return _whole(end, metadata, reason)
    hint = f"read the whole table again with `tidegate delta plan --rebaseline {question.upstream.name}`"
    return Blocked(SourceError(reason, where=question.upstream.name, hint=hint))


def _whole(end: int, metadata: Metadata, reason: str) -> Range:
    return Range(Window(None, Position.of(end)), metadata, rebaseline=reason)


def _left(mark: Watermark | None, columns: Metadata) -> frozenset[str]:
    """Columns that targets have and the table has no more: none of those that it begins with."""
    said = mark.schemas[-1][1] if mark is not None and mark.schemas else {}
    return frozenset(said.get("left", ())) - {name for name, _ in columns.columns}


def _is_another(mark: Watermark | None, log: TableLog, last: int) -> bool:
    """Whether the version under this number is another one than was processed: an older copy of the table was
    put back, and then written to."""
    said = mark.schemas[-1][1] if mark is not None and mark.schemas else {}
    known = said.get("commit") if said.get("version") == last else None
    return known is not None and log.digest(last) not in (None, known)


# --- Columns -------------------------------------------------------------------


def _columns_at(last: int, mark: Watermark | None, log: TableLog) -> Metadata:
    """What the table said of itself at the version after which a range begins.

    What was remembered when the newest plan was made is that, unless the mark was moved since or the plan was
    given up. Of what was before a mark that was set by hand on a new stream, nobody has to decide.
    """
    known = known_metadata(mark)
    if mark is None or known is None:
        return log.metadata(last + 1)
    if mark.schemas[-1][1].get("version", last) == last:
        return known
    try:
        return log.metadata(last)
    except SourceError:  # it was cleaned up, and what comes after it is all that there is to read
        return log.metadata(last + 1)


def known_metadata(mark: Watermark | None) -> Metadata | None:
    """What the table said of itself when it was last planned."""
    if mark is None or not mark.schemas:
        return None
    return Metadata.from_json(mark.schemas[-1][1])


def compatible(before: Metadata, after: Metadata) -> bool:
    """Whether rows of both fit into one table: columns may come and go, but not change or be renamed."""
    new = dict(after.columns)
    same = all(new[name] == kind for name, kind in before.columns if name in new)
    return same and not renamed(before, after)


def gone(before: Metadata, after: Metadata) -> bool:
    return not {name for name, _ in before.columns} <= {name for name, _ in after.columns}


def dropped(before: Metadata, after: Metadata | None) -> frozenset[str]:
    """Columns that went without any row being written: only tables that number their columns can do so.

    Targets keep what these columns held. If one of that name comes again, it is another column, and empty in
    all rows that do not change.
    """
    if after is None or not after.numbers:
        return frozenset()
    return frozenset(name for name, _ in before.columns) - {name for name, _ in after.columns}


def renamed(before: Metadata, after: Metadata) -> dict[str, str]:
    """Columns that go by another name now, where the table gives its columns numbers."""
    now = {number: name for name, number in after.numbers}
    return {name: now[number] for name, number in before.numbers if now.get(number, name) != name}


def differences(before: Metadata, after: Metadata, back: Set[str] = frozenset()) -> tuple[str, ...]:
    old, new, moved = dict(before.columns), dict(after.columns), renamed(before, after)
    return (
        *(f"`{name}` is called `{other}` now" for name, other in moved.items()),
        *(f"`{name}` is there again, as another column" for name in new if name in back),
        *(f"`{name}` is new" for name in new if name not in {*old, *moved.values(), *back}),
        *(f"`{name}` is gone" for name in old if name not in new and name not in moved),
        *(
            f"`{name}` was {old[name]} and is {new[name]}"
            for name in old
            if new.get(name, old[name]) != old[name]
        ),
    )

"""Which segments Delta tables hold, exactly, though no transaction spans two tables.

    _tidegate_loads/   a row for each segment of each load that was begun, written before the load's commit
    _tidegate_fences/  streams whose marks were moved by hand, and the lease under which that happened

A load has a number of its own, and the commit that brings its rows also records that number in the table's
log, as the last transaction of the stream there. Each load names the one before it, and its commit is made on
the very version in which that one was found. So the loads that happened are a chain: from the number in the
table's log back, load by load. What was begun and never committed is not on the chain, and means nothing.

The table's log remembers one number for each stream, not one for each segment: it does not grow with them.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.core.errors import LeaseLost, TargetError
from tidegate.core.watermark import StreamId
from tidegate.delta_log import LOG_VERSION, DeltaLog, Words, undisturbed
from tidegate.targets.contract import FENCES, LEDGER, StagedSegment

if TYPE_CHECKING:
    from deltalake import DeltaTable

WORDS = Words("the target", TargetError)
NONE = 0
"""The number of no load."""
_CHANCE_BITS = 32
_LOADS = pa.schema(
    [
        ("pipeline_name", pa.string()),
        ("stream_key", pa.string()),
        ("stream_name", pa.string()),
        ("table_name", pa.string()),
        ("load", pa.int64()),
        ("previous", pa.int64()),
        ("generation", pa.int64()),
        ("segment", pa.string()),
        ("run", pa.int64()),
        ("last_run", pa.int64()),
        ("rows", pa.int64()),
        ("begun_at", pa.timestamp("us", tz="UTC")),
        (LOG_VERSION, pa.int64()),
    ]
)
_FENCES = pa.schema(
    [
        ("pipeline_name", pa.string()),
        ("stream_key", pa.string()),
        ("stream_name", pa.string()),
        ("fence", pa.int64()),
        (LOG_VERSION, pa.int64()),
    ]
)


def load_mark(stream: StreamId) -> str:
    """What the last load of a stream is recorded under in a table's log."""
    return f"tidegate-load-{stream_key(stream)}"


def fence_mark(stream: StreamId) -> str:
    return f"tidegate-fence-{stream_key(stream)}"


def stream_key(stream: StreamId) -> str:
    return hashlib.sha256(f"{stream.pipeline}\0{stream.name}".encode()).hexdigest()[:32]


def head_of(table: DeltaTable | None, stream: StreamId) -> int:
    """The number of the last load of a stream that a table has."""
    return NONE if table is None else table.transaction_version(load_mark(stream)) or NONE


def demand_not_fenced(found: int, fence: int, stream: StreamId) -> None:
    """Raise `LeaseLost` if the stream's marks were moved by hand under a later lease than this."""
    if fence < found:
        raise LeaseLost(
            "the mark was moved by hand while this run stood still; nothing was loaded",
            where=str(stream),
            hint="run it again",
        )


@dataclass(frozen=True)
class Entry:
    """A segment that a load brings, or that it leaves out for good as superseded: then without rows."""

    staged: StagedSegment
    rows: int


@dataclass(frozen=True)
class Ledger:
    """`newest` opens a table by its name at its newest version; None if there is none."""

    place: str
    options: Mapping[str, str]
    newest: Callable[[str], DeltaTable | None]

    @cached_property
    def _loads(self) -> DeltaLog:
        indexed = ("stream_key", "load", "generation", "run")
        return DeltaLog(f"{self.place}/{LEDGER}", _LOADS, self.options, indexed=indexed, words=WORDS)

    @cached_property
    def _fences(self) -> DeltaLog:
        return DeltaLog(
            f"{self.place}/{FENCES}", _FENCES, self.options, indexed=("stream_key", "fence"), words=WORDS
        )

    # --- What was loaded

    def held(self, stream: StreamId, generation: int, keys: Sequence[str]) -> frozenset[str]:
        """Which of these segments are in any table of the stream."""
        if not keys:
            return frozenset()
        found = self._happened(
            stream, f"generation = {int(generation)} AND segment IN ({', '.join(map(_literal, keys))})"
        )
        return frozenset(row["segment"] for row in found)

    def knows_newer(self, stream: StreamId, generation: int, run: int) -> bool:
        """Whether a later run has been loaded.

        An older snapshot that is loaded again on purpose has a new generation and gives way to none.
        """
        return bool(self._happened(stream, f"generation >= {int(generation)} AND run > {int(run)}"))

    def last_run(self, stream: StreamId) -> int:
        """The largest run number of all that was loaded."""
        heads = [head_of(self.newest(name), stream) for name in self._tables(stream)]
        return max(self._runs(stream, heads).values(), default=0)

    def _runs(self, stream: StreamId, loads: Sequence[int]) -> dict[int, int]:
        """The largest run number that there was with each of these loads."""
        listed = ", ".join(str(load) for load in (*loads, NONE))
        rows = self._select(f"DISTINCT load, last_run FROM log WHERE {_of(stream)} AND load IN ({listed})")
        return {row["load"]: row["last_run"] for row in rows}

    def _happened(self, stream: StreamId, condition: str) -> list[dict[str, Any]]:
        """The entries that a condition finds, without those of loads that were begun and never committed."""
        rows = self._select(f"table_name, load, segment FROM log WHERE {_of(stream)} AND ({condition})")
        chains = {
            name: self._chain(stream, name, min(row["load"] for row in rows if row["table_name"] == name))
            for name in {row["table_name"] for row in rows}
        }
        return [row for row in rows if row["load"] in chains[row["table_name"]]]

    def _chain(self, stream: StreamId, table: str, first: int) -> set[int]:
        """The loads of a stream that a table has, back to the first one that is asked about."""
        rows = self._select(
            f"DISTINCT load, previous FROM log WHERE {_of(stream)} "
            f"AND table_name = {_literal(table)} AND load >= {first}"
        )
        before = {row["load"]: row["previous"] for row in rows}
        chain: set[int] = set()
        load = head_of(self.newest(table), stream)
        while load in before:
            chain.add(load)
            load = before[load]
        return chain

    def _tables(self, stream: StreamId) -> list[str]:
        rows = self._select(f"DISTINCT table_name FROM log WHERE {_of(stream)}")
        return sorted(row["table_name"] for row in rows)

    def _select(self, query: str) -> list[dict[str, Any]]:
        self._loads.refresh()
        return self._loads.rows(f"SELECT {query}")

    # --- What is about to be loaded

    def begin(
        self, stream: StreamId, table: str, generation: int, entries: Iterable[Entry], *, previous: int
    ) -> int:
        """Write down what a load brings, before it does. Returns its number, for its commit to record."""
        load = ((previous >> _CHANCE_BITS) + 1 << _CHANCE_BITS) | secrets.randbits(_CHANCE_BITS)
        listed = list(entries)
        if previous != NONE and previous not in self._runs(stream, [previous]):
            raise _forgotten(table, previous)
        last_run = max([self.last_run(stream), *(entry.staged.segment.run for entry in listed)])
        common = {
            **_named(stream),
            "table_name": table,
            "load": load,
            "previous": previous,
            "generation": generation,
            "last_run": last_run,
            "begun_at": datetime.now(UTC),
        }
        rows = [
            {**common, "segment": e.staged.segment.key, "run": e.staged.segment.run, "rows": e.rows}
            for e in listed
        ]
        self._append(self._loads, rows)
        return load

    def create(self) -> None:
        self._loads.ensure()
        self._fences.ensure()

    def exists(self) -> bool:
        return self._loads.refresh() is not None and self._fences.refresh() is not None

    def tidy(self) -> None:
        self._loads.tidy()

    def _append(self, log: DeltaLog, rows: Sequence[Mapping[str, Any]]) -> None:
        def commit() -> None:
            log.ensure()
            log.refresh()
            log.commit(rows)

        undisturbed(commit, where=log.place, words=WORDS)

    # --- Fences

    def fence(self, stream: StreamId) -> int:
        self._fences.refresh()
        rows = self._fences.rows(f"SELECT max(fence) AS fence FROM log WHERE {_of(stream)}")
        return rows[0]["fence"] or 0 if rows else 0

    def fence_off(self, stream: StreamId, fence: int) -> tuple[int, list[str]]:
        """Let no lease with a smaller number begin to load.

        Returns the largest such number, and the tables in which a load may be under way. A load asks for the
        fence after it has written down where it goes: whoever it was that did not see the fence is seen here.
        """
        if fence > self.fence(stream):
            self._append(self._fences, [{**_named(stream), "fence": fence}])
        return max(fence, self.fence(stream)), self._tables(stream)


def _forgotten(table: str, load: int) -> TargetError:
    return TargetError(
        f"the table remembers load {load}, of which `{LEDGER}` beside it knows nothing; nothing was loaded",
        where=table,
        hint=f"put `{LEDGER}` back, or rename the table and bring all rows again after `watermark reset`",
    )


def _named(stream: StreamId) -> dict[str, Any]:
    # A partition's value cannot be empty, and its name becomes a folder.
    pipeline = stream.pipeline or "_"
    return {"pipeline_name": pipeline, "stream_key": stream_key(stream), "stream_name": stream.name}


def _of(stream: StreamId) -> str:
    return f"stream_key = '{stream_key(stream)}'"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"

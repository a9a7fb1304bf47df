"""The ledger: which segments a target holds. Its rows are written in the transaction that loads theirs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tidegate.core.errors import LeaseLost
from tidegate.core.watermark import StreamId
from tidegate.targets.ddl import PLAIN, Words


class Queries(Protocol):
    """What the ledger needs of a session; parameters are written `$1`, `$2`."""

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]: ...

    def change(self, sql: str, parameters: Sequence[object] = ()) -> int: ...


_ASKED_AT_ONCE = 1_000
"""Keys in one question: databases take a bounded number of parameters."""


@dataclass(frozen=True, slots=True)
class Ledger:
    relation: str
    fences: str
    session: Queries
    words: Words = PLAIN

    def create(self) -> None:
        """Unless it is there: what an attempt that failed has left of it stays."""
        text = self.words.text
        self.session.change(
            f'CREATE TABLE IF NOT EXISTS {self.fences} ("pipeline" {text} NOT NULL, '
            f'"stream" {text} NOT NULL, "fence" bigint NOT NULL, PRIMARY KEY ("pipeline", "stream"))'
        )
        self.session.change(
            f'CREATE TABLE IF NOT EXISTS {self.relation} ("pipeline" {text} NOT NULL, '
            f'"stream" {text} NOT NULL, "generation" bigint NOT NULL, "segment" {text} NOT NULL, '
            '"run" bigint NOT NULL, "rows" bigint NOT NULL, "loaded_at" timestamptz NOT NULL, '
            'PRIMARY KEY ("pipeline", "stream", "generation", "segment"))'
        )

    def demand_not_fenced(self, stream: StreamId, fence: int) -> None:
        """Raise `LeaseLost` if the stream's marks were moved by hand under a later lease than this."""
        if fence < self._fence(stream):
            raise LeaseLost(
                "the mark was moved by hand while this run stood still; nothing was loaded",
                where=str(stream),
                hint="run it again",
            )

    def fence_off(self, stream: StreamId, fence: int) -> None:
        """Let no lease with a smaller number load any more."""
        if fence <= self._fence(stream):
            return
        names = [stream.pipeline, stream.name]
        self.session.change(f'DELETE FROM {self.fences} WHERE "pipeline" = $1 AND "stream" = $2', names)
        self.session.change(
            f'INSERT INTO {self.fences} ("pipeline", "stream", "fence") VALUES ($1, $2, $3)', [*names, fence]
        )

    def _fence(self, stream: StreamId) -> int:
        [(fence,)] = self.session.rows(
            f'SELECT COALESCE(max("fence"), 0) FROM {self.fences} WHERE "pipeline" = $1 AND "stream" = $2',
            [stream.pipeline, stream.name],
        )
        return int(fence)

    def held(self, stream: StreamId, generation: int, keys: Sequence[str]) -> frozenset[str]:
        return frozenset(key for page in _pages(keys) for key in self._held(stream, generation, page))

    def _held(self, stream: StreamId, generation: int, keys: Sequence[str]) -> list[str]:
        places = ", ".join(f"${number}" for number in range(4, 4 + len(keys)))
        rows = self.session.rows(
            f'SELECT "segment" FROM {self.relation} WHERE "pipeline" = $1 AND "stream" = $2 '
            f'AND "generation" = $3 AND "segment" IN ({places})',
            [stream.pipeline, stream.name, generation, *keys],
        )
        return [key for (key,) in rows]

    def last_run(self, stream: StreamId) -> int:
        [(run,)] = self.session.rows(
            f'SELECT COALESCE(max("run"), 0) FROM {self.relation} WHERE "pipeline" = $1 AND "stream" = $2',
            [stream.pipeline, stream.name],
        )
        return int(run)

    def knows_newer(self, stream: StreamId, generation: int, run: int) -> bool:
        """Whether a later run has been loaded.

        An older snapshot that is loaded again on purpose has a new generation and gives way to none.
        """
        [(count,)] = self.session.rows(
            f'SELECT count(*) FROM {self.relation} WHERE "pipeline" = $1 AND "stream" = $2 '
            'AND "generation" >= $3 AND "run" > $4',
            [stream.pipeline, stream.name, generation, run],
        )
        return bool(count)

    def record(self, stream: StreamId, generation: int, segment: str, run: int, rows: int) -> None:
        self.session.change(
            f'INSERT INTO {self.relation} ("pipeline", "stream", "generation", "segment", "run", "rows", '
            f'"loaded_at") VALUES ($1, $2, $3, $4, $5, $6, {self.words.now})',
            [stream.pipeline, stream.name, generation, segment, run, rows],
        )


def _pages(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(keys), _ASKED_AT_ONCE):
        yield keys[start : start + _ASKED_AT_ONCE]

"""A Delta table whose every commit is made on its newest version, or not at all.

delta-rs would rebase a commit that others have overtaken, where the rows do not touch. Here it must not: what
was read is what the next version is made from, so each commit is a compare-and-set of the whole table.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tidegate.core.errors import ConnectError, OutcomeUnknown, StateError, TidegateError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

LOG_VERSION = "log_version"
"""A column of every table: the version of the log in which the row was written."""

_MANY_FILES = 48
"""Every commit adds small files; reading stays quick as long as there are few."""
_LARGE_BYTES = 8 * 1024 * 1024
"""A file of this size is not written again: the cost of tidying does not grow with the past."""
_REFUSALS = (
    "Permission denied",
    "Read-only file system",
    "AccessDenied",
    "403 Forbidden",
    "lacked the necessary privileges",
    "lacked valid authentication",
)
_COLOURS = re.compile(r"\x1b\[\d+m")
_KEPT_HOURS = 24 * 7
"""How long replaced files stay, for readers that have begun with them."""
_TRUSTED_SECONDS = 3600.0
"""How long nothing can have been cleaned up of the log: it is kept for days."""
_PATIENCE_SECONDS = 60.0
_FEW_ATTEMPTS = 10

T = TypeVar("T")


class Overtaken(Exception):
    """Somebody else made the next version first: nothing was written."""


@dataclass(frozen=True)
class Words:
    """How errors speak of what is kept in Delta tables."""

    what: str = "the state"
    error: type[TidegateError] = StateError
    done: str = "read"


STATE = Words()


def undisturbed(work: Callable[[], T], *, where: str, words: Words, attempts: int = 1000) -> T:
    """Do the work on the newest version, again and again until nobody got in the way.

    It goes on for a minute and a few attempts: work that takes long shall not be given up too early.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    for attempt in range(1, attempts + 1):
        try:
            return work()
        except Overtaken:
            if attempt >= _FEW_ATTEMPTS and time.monotonic() > deadline:
                break
            time.sleep(random.uniform(0, 0.02 * min(attempt, 20)))
    raise words.error(
        f"others kept writing for {_PATIENCE_SECONDS:g} s; nothing was written",
        where=where,
        hint="run it again",
    )


class DeltaLog:
    """A table that is partitioned by `pipeline_name` and has a column `log_version`."""

    def __init__(
        self,
        place: str,
        schema: pa.Schema,
        options: Mapping[str, str],
        *,
        indexed: Sequence[str],
        words: Words = STATE,
    ) -> None:
        self.place = place
        self._schema = schema
        self._options = dict(options)
        self._indexed = indexed
        self._words = words
        self._table: DeltaTable | None = None
        self._looked_at = 0.0
        self._transactions: tuple[int, dict[str, int]] | None = None
        """What applications have recorded as of a version, as far as they were asked for."""

    def refresh(self) -> DeltaTable | None:
        """The newest version; None as long as there is no table."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        with self._said():
            if self._table is None:
                try:
                    self._table = DeltaTable(self.place, storage_options=self._options)
                except TableNotFoundError:
                    return None
                self._looked_at = time.monotonic()
            elif self._may_have_changed(self._table):
                self._looked_at = time.monotonic()
                self._table.update_incremental()
            return self._table

    def _may_have_changed(self, table: DeltaTable) -> bool:
        """On a disk the name of the next commit tells, unless that may have been cleaned up since."""
        if "://" in self.place or time.monotonic() - self._looked_at > _TRUSTED_SECONDS:
            return True
        return Path(self.place, "_delta_log", f"{table.version() + 1:020}.json").exists()

    def ensure(self) -> None:
        """Create the table if it is missing. Others may write to it at once, so refresh before reading."""
        if self._table is None and self.refresh() is None:
            self._create()

    def rows(self, query: str) -> list[dict[str, Any]]:
        """What a SELECT from `log` finds in the version that was last refreshed."""
        if self._table is None:
            return []
        import pyarrow as pa
        from deltalake import QueryBuilder

        with self._said():
            found = QueryBuilder().register("log", self._table).execute(query).read_all()
        rows: list[dict[str, Any]] = pa.table(found).to_pylist()
        return rows

    def largest(self, column: str) -> int:
        """The largest value that a column has, as the log itself knows."""
        return max((file.get(f"max.{column}") or 0 for file in self._files()), default=0)

    def transaction(self, application: str) -> int:
        """The last version that an application has recorded in this table."""
        if self._table is None:
            return 0
        known = self._transactions
        if known is None or known[0] != self._table.version():
            known = self._transactions = (self._table.version(), {})
        if application not in known[1]:  # the whole log is read for it
            known[1][application] = self._table.transaction_version(application) or 0
        return known[1][application]

    def commit(
        self,
        rows: Sequence[Mapping[str, Any]],
        *,
        instead_of: str | None = None,
        transactions: Mapping[str, int] | None = None,
    ) -> DeltaTable:
        """Add rows, in the place of those that a condition finds, as the version after the refreshed one."""
        import pyarrow as pa

        table = self._table
        if table is None:  # and others may have created it since, and written to it
            raise Overtaken
        version = table.version() + 1
        data = [{**row, LOG_VERSION: version} for row in rows]
        self._write(pa.Table.from_pylist(data, schema=self._schema), instead_of, transactions or {})
        known = self._transactions
        if known is not None and known[0] == version - 1:  # nobody but this commit has changed them
            self._transactions = (version, {**known[1], **(transactions or {})})
        return table

    def tidy(self) -> None:
        """Put many small files together, now and then. Whoever is overtaken leaves it to the next.

        The rows are written again by a commit like any other. What delta-rs offers for it is not used: of two
        that do so at the same time both succeed, and every row is there twice.
        """
        table = self.refresh()
        if table is None:
            return
        files = [file for file in self._files() if file["size_bytes"] < _LARGE_BYTES]
        fewest = len({file["partition.pipeline_name"] for file in files})
        if len(files) <= fewest + _MANY_FILES:
            return
        first = min((file[f"min.{LOG_VERSION}"] or 0 for file in files), default=0)
        settled = [file[f"max.{LOG_VERSION}"] or 0 for file in self._files() if file not in files]
        young = f"{LOG_VERSION} >= {max([first, *(version + 1 for version in settled)])}"
        self._write(self._selected(f"SELECT * FROM log WHERE {young}"), young, {})
        with self._said():
            table.vacuum(retention_hours=_KEPT_HOURS, dry_run=False)

    def _write(self, data: pa.Table, instead_of: str | None, transactions: Mapping[str, int]) -> None:
        from deltalake import CommitProperties, Transaction, write_deltalake
        from deltalake.exceptions import CommitFailedError

        assert self._table is not None
        properties = CommitProperties(
            max_commit_retries=0,
            app_transactions=[Transaction(name, version) for name, version in transactions.items()],
        )
        with self._said(writing=True):
            try:
                if instead_of is None:
                    write_deltalake(self._table, data, mode="append", commit_properties=properties)
                else:
                    write_deltalake(
                        self._table,
                        data,
                        mode="overwrite",
                        predicate=instead_of,
                        commit_properties=properties,
                    )
            except CommitFailedError as error:
                self._table = None
                raise Overtaken from error

    def _selected(self, query: str) -> pa.Table:
        import pyarrow as pa
        from deltalake import QueryBuilder

        assert self._table is not None
        with self._said():
            found = pa.table(QueryBuilder().register("log", self._table).execute(query).read_all())
        return found.select(self._schema.names).cast(self._schema)

    def _files(self) -> list[dict[str, Any]]:
        """The files of the refreshed version, with what the log knows of them."""
        import pyarrow as pa

        if self._table is None:
            return []
        files: list[dict[str, Any]] = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        return files

    def _create(self) -> None:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        with self._said(writing=True):
            try:
                DeltaTable.create(
                    self.place,
                    schema=self._schema,
                    mode="error",
                    partition_by=["pipeline_name"],
                    configuration={
                        "delta.checkpointInterval": "20",
                        "delta.logRetentionDuration": "interval 7 days",
                        "delta.dataSkippingStatsColumns": ",".join([*self._indexed, LOG_VERSION]),
                    },
                    storage_options=self._options,
                )
            except DeltaError:
                if self.refresh() is None:  # else somebody has created it at the same moment
                    raise

    @contextmanager
    def _said(self, *, writing: bool = False) -> Iterator[None]:
        try:
            with said(self.place, self._words, writing=writing):
                yield
        except TidegateError:
            self._table = None
            raise


@contextmanager
def said(place: str, words: Words, *, writing: bool = False) -> Iterator[None]:
    """Say in words what delta-rs met."""
    try:
        from deltalake.exceptions import DeltaError
    except ImportError as error:
        raise UsageError(
            "the package for Delta tables is not installed", hint="pip install 'tidegate[delta]'"
        ) from error
    try:
        yield
    except (DeltaError, OSError) as error:
        raise _in_words(error, place, words, writing=writing) from error


def _in_words(error: Exception, place: str, words: Words, *, writing: bool) -> TidegateError:
    text = " ".join(_COLOURS.sub("", str(error)).split())[:300]
    if any(sign in text for sign in _REFUSALS):
        hint = "the tables must be writable for the user who runs this"
        return words.error(f"{words.what} may not be read or written: {text}", where=place, hint=hint)
    if "No space left" in text:
        hint = "make room; what was committed before is intact, so run it again afterwards"
        return words.error(f"{words.what} cannot be written: {text}", where=place, hint=hint)
    if writing:
        return OutcomeUnknown(f"it is not known whether {words.what} was written: {text}", where=place)
    if "error sending request" in text or "timed out" in text:
        return ConnectError(f"{words.what} cannot be reached: {text}", where=place)
    return words.error(f"{words.what} cannot be {words.done}: {text}", where=place)

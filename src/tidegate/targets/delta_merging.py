"""Which rows of a Delta table give way to incoming ones, and which incoming ones come too late.

Only keys, cursors and run numbers of the incoming rows are in memory, and beside them those of one file of
the table at a time. Whole rows pass through: files in which nothing changes are left as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.fs import FileSystem

from tidegate.core.errors import TargetError
from tidegate.core.names import RUN_COLUMN
from tidegate.targets.delta_files import DataFile, arrow_schema_of, data_files, spelled

if TYPE_CHECKING:
    from deltalake import DeltaTable

_RUN, _ROW, _INCOMING = "run", "row", "row_incoming"
_NO_ROWS = pa.array([], pa.int64())


@dataclass(frozen=True)
class Comparison:
    """The columns that rows are compared by, in the table's names."""

    key: Sequence[str]
    cursor: Sequence[str] = ()
    with_run: bool = True

    @property
    def columns(self) -> list[str]:
        run = [RUN_COLUMN] if self.with_run else []
        return list(dict.fromkeys([*self.key, *self.cursor, *run]))

    @classmethod
    def spelled(
        cls, schema: pa.Schema, key: Sequence[str], cursor: Sequence[str] = (), *, with_run: bool = True
    ) -> Comparison:
        """With the columns as the table spells them: in their names case does not count."""
        return cls(spelled(key, schema), spelled(cursor, schema), with_run)

    def of(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
        """What is compared, under names of its own, and the number of each row."""
        wanted = pa.schema([schema.field(name) for name in self.columns])
        rows = pa.Table.from_batches((batch.select(self.columns) for batch in batches), wanted)
        columns = {f"k{n}": rows.column(name) for n, name in enumerate(self.key)}
        columns |= {f"c{n}": rows.column(name) for n, name in enumerate(self.cursor)}
        if self.with_run:
            columns[_RUN] = rows.column(RUN_COLUMN)
        return pa.table({**columns, _ROW: _count(rows.num_rows)})

    @property
    def keys(self) -> list[str]:
        return [f"k{n}" for n in range(len(self.key))]

    @property
    def cursors(self) -> list[str]:
        return [f"c{n}" for n in range(len(self.cursor))]


def demand_keys(incoming: pa.Table, comparison: Comparison, where: str) -> None:
    empty = pa.repeat(pa.scalar(value=False), incoming.num_rows)
    for name in comparison.keys:
        empty = pc.or_(empty, pc.is_null(incoming.column(name)))
    count = pc.sum(empty).as_py() or 0
    if count:
        raise TargetError(
            f"{count:,} rows have no value in {' or '.join(comparison.key)}, which rows are merged by; "
            "nothing was loaded",
            where=where,
            hint="fill the column at the source, or choose other columns with `keys:`",
        )


def newest(incoming: pa.Table, comparison: Comparison) -> pa.Table:
    """One row of each key, the newest by (cursor, run). A missing cursor is older than any."""
    keys = comparison.keys
    if incoming.select(keys).group_by(keys).aggregate([]).num_rows == incoming.num_rows:
        return incoming  # mostly no key comes twice, and sorting is what costs most
    later = [*comparison.cursors, *([_RUN] if comparison.with_run else []), _ROW]
    order = [(name, "ascending") for name in keys] + [(name, "descending") for name in later]
    ranked = incoming.take(pc.sort_indices(incoming, sort_keys=order))
    return ranked.filter(_first_of_each(ranked, keys))


def _first_of_each(ranked: pa.Table, keys: Sequence[str]) -> pa.Array:
    differs = pa.repeat(pa.scalar(value=False), ranked.num_rows - 1)
    for name in keys:
        column = ranked.column(name).combine_chunks()
        differs = pc.or_(differs, pc.invert(_same(column[1:], column[:-1])))
    return pa.concat_arrays([pa.array([True]), differs.combine_chunks() if _chunked(differs) else differs])


def _chunked(column: Any) -> bool:
    return isinstance(column, pa.ChunkedArray)


def _same(one: Any, other: Any) -> Any:
    """Whether values are equal, where none is a value too."""
    both_missing = pc.and_(pc.is_null(one), pc.is_null(other))
    return pc.or_(pc.fill_null(pc.equal(one, other), pa.scalar(value=False)), both_missing)


@dataclass(frozen=True)
class Outcome:
    """What a merge does, row by row."""

    stay: Sequence[tuple[DataFile, pa.Array]]
    """Files that lose rows, and which of their rows stay."""
    enter: pa.Array
    """Which of the incoming rows come in."""


def compare(
    incoming: pa.Table, comparison: Comparison, files: Iterable[tuple[DataFile, pa.Table]], total: int
) -> Outcome:
    """Let the newer version win; `files` are the compared columns of each that may have some of the keys."""
    beaten: list[tuple[DataFile, int, pa.Table]] = []
    late = [_NO_ROWS]
    for file, rows in files:
        pairs = matched(rows, incoming, comparison)
        wins = _not_older(pairs, comparison)
        late.append(_numbers(pairs.filter(pc.invert(wins)), _INCOMING))
        beaten.append((file, rows.num_rows, pairs.filter(wins).select([_ROW, _INCOMING])))
    losers = pa.concat_arrays(late)
    stay = []
    for file, count, pairs in beaten:
        # A row gives way only to one that loses to none.
        gone = _numbers(pairs.filter(pc.invert(pc.is_in(pairs.column(_INCOMING), losers))), _ROW)
        if len(gone):
            stay.append((file, pc.invert(_among(gone, count))))
    entering = incoming.filter(pc.invert(pc.is_in(incoming.column(_ROW), losers)))
    return Outcome(stay, _among(_numbers(entering, _ROW), total))


def missing(
    incoming: pa.Table, comparison: Comparison, files: Iterable[tuple[DataFile, pa.Table]], total: int
) -> Outcome:
    """Let in only rows whose key is not there."""
    there = [_NO_ROWS, *(_numbers(matched(rows, incoming, comparison), _INCOMING) for _, rows in files)]
    entering = incoming.filter(pc.invert(pc.is_in(incoming.column(_ROW), pa.concat_arrays(there))))
    return Outcome([], _among(_numbers(entering, _ROW), total))


def _numbers(rows: pa.Table, column: str) -> pa.Array:
    return rows.column(column).combine_chunks().cast(pa.int64())


def _among(numbers: pa.Array, count: int) -> pa.Array:
    """For each of so many rows, whether its number is one of these."""
    return pc.is_in(_count(count), numbers)


def matched(existing: pa.Table, incoming: pa.Table, comparison: Comparison) -> pa.Table:
    """Pairs of rows with the same key; the incoming row's columns end in `_incoming`."""
    sparse = [name for name in comparison.keys if incoming.column(name).null_count]
    for name in sparse:
        existing, incoming = _told_apart(existing, name), _told_apart(incoming, name)
    renamed = incoming.rename_columns(
        [name if name in comparison.keys else f"{name}_incoming" for name in incoming.schema.names]
    )
    return existing.join(renamed, comparison.keys, join_type="inner")


def _told_apart(rows: pa.Table, name: str) -> pa.Table:
    """The table with a column of its key as text in which no value is one as well."""
    texts = pc.binary_join_element_wise("=", rows.column(name).cast(pa.string()), "")
    return rows.set_column(rows.schema.get_field_index(name), name, pc.fill_null(texts, ""))


def _not_older(pairs: pa.Table, comparison: Comparison) -> Any:
    """Whether (cursor, run) of the incoming row is at or after the existing row's.

    Rows from before the run column was there count as older than any run.
    """
    wins = pc.greater_equal(pairs.column("run_incoming"), pc.fill_null(pairs.column(_RUN), 0))
    for name in reversed(comparison.cursors):
        mine, theirs = pairs.column(f"{name}_incoming"), pairs.column(name)
        later = pc.fill_null(pc.greater(mine, theirs), pa.scalar(value=False))
        newer = pc.or_(later, pc.and_(pc.is_valid(mine), pc.is_null(theirs)))
        wins = pc.or_(newer, pc.and_(_same(mine, theirs), wins))
    return wins


# --- Files -------------------------------------------------------------------


def candidates(files: Sequence[DataFile], incoming: pa.Table, comparison: Comparison) -> list[DataFile]:
    """Those that may have one of the incoming keys, by what the log knows of them."""
    bounds: dict[str, tuple[Any, Any]] = {}
    for name, column in zip(comparison.key, comparison.keys, strict=True):
        values = incoming.column(column)
        if values.null_count == 0 and len(values) and _prunable(values.type):
            with suppress(ValueError, OverflowError):  # beyond Python's calendar: every file may have it
                ends = pc.min_max(values).as_py()
                bounds[name] = (ends["min"], ends["max"])
    return [file for file in files if _overlaps(file, bounds)]


def _prunable(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date(kind))


def _overlaps(file: DataFile, bounds: Mapping[str, tuple[Any, Any]]) -> bool:
    for name, (low, high) in bounds.items():
        first, last = file.lowest.get(name), file.highest.get(name)
        if (first is not None and first > high) or (last is not None and last < low):
            return False
    return True


def compared(
    files: Sequence[DataFile], storage: FileSystem, schema: pa.Schema, comparison: Comparison
) -> Iterator[tuple[DataFile, pa.Table]]:
    """The compared columns of each file, one file at a time."""
    for file in files:
        yield file, comparison.of(file.batches(storage, schema, comparison.columns), schema)


def present(
    table: DeltaTable, storage: FileSystem, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]
) -> int:
    """How many rows of the table have one of these combinations, of which each is given once."""
    schema = arrow_schema_of(table)
    comparison = Comparison.spelled(schema, columns, with_run=False)
    fields = [schema.field(name) for name in comparison.key]
    values = [
        pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), fields, strict=True)
    ]
    batch = pa.record_batch(values, names=list(comparison.key))
    asked = comparison.of([batch], schema)
    files = candidates(data_files(table), asked, comparison)
    found = (matched(there, asked, comparison) for _, there in compared(files, storage, schema, comparison))
    return sum(pairs.num_rows for pairs in found)


def kept(batches: Iterable[pa.RecordBatch], which: pa.Array) -> Iterator[pa.RecordBatch]:
    start = 0
    for batch in batches:
        yield batch.filter(which[start : start + batch.num_rows])
        start += batch.num_rows


def _count(rows: int) -> pa.Array:
    return pa.array(range(rows), pa.int64())

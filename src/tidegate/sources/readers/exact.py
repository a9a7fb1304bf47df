"""From what a driver delivers to exactly what was declared. What does not fit is refused, never bent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.core.errors import ConfigError, LossyValue, SourceError, TidegateError
from tidegate.core.types import Column, DataType, Kind
from tidegate.sources.contract import Read

Restore = Callable[[pa.Array, pa.DataType], pa.Array]
"""Turns what arrived into the wanted type, or raises `Refused` or `Unexpected`."""

CELLS = 1 << 20
"""Values in one batch: a table of 500 columns is read fewer rows at a time."""

_LARGE = 1 << 28
"""Bytes of a batch above which it is cut: columns of more than 2 GiB have no type that all can read."""
_DAY_MICROSECONDS = 86_400_000_000
_LONGEST_SHOWN = 60


class Refused(ValueError):
    """A value that the declared type cannot hold, and the row it is in."""

    def __init__(self, row: int, value: str) -> None:
        super().__init__(value)
        self.row = row
        self.value = value


class Unexpected(TypeError):
    """The driver delivered a type that says the column is no longer what it was."""


@dataclass(frozen=True)
class Projection:
    """How one column is selected so that nothing is lost on the way, and what turns it back."""

    column: Column
    sql: str
    restore: Restore


@dataclass(frozen=True)
class Rule:
    """The projection of columns of certain kinds and native types; without native types, of all of them."""

    kinds: frozenset[str]
    natives: frozenset[str] | None
    sql: Callable[[str, DataType], str]
    restore: Restore

    def fits(self, column: Column) -> bool:
        return column.type.kind in self.kinds and (self.natives is None or base(column) in self.natives)


def base(column: Column) -> str:
    """The native type without sizes and attributes: `decimal` of `decimal(10,2) unsigned`, and `text` of
    `text /*M!100301 COMPRESSED*/`."""
    native = column.native.lower()
    if native.endswith("[]"):
        return native
    return native.partition("(")[0].partition("/*")[0].strip().removesuffix(" unsigned")


def projections(
    columns: Iterable[Column], rules: Sequence[Rule], quote: Callable[[str], str]
) -> tuple[Projection, ...]:
    """By the first rule that fits."""
    return tuple(_projection(column, rules, quote) for column in columns)


def _projection(column: Column, rules: Sequence[Rule], quote: Callable[[str], str]) -> Projection:
    for rule in rules:
        if rule.fits(column):
            return Projection(column, rule.sql(quote(column.name), column.type), rule.restore)
    raise SourceError(f"column `{column.name}` is {column.native}, which cannot be read as {column.type}")


def select(read: Read, chosen: Sequence[Projection]) -> str:
    """What stands behind SELECT. Columns are called c0, c1, …: drivers trip over names like `a` and `A`."""
    selected = ", ".join(f"{projection.sql} AS c{number}" for number, projection in enumerate(chosen))
    return f"{selected} FROM {read.relation} WHERE {read.condition}"


class Nulled:
    """Columns in which what does not fit becomes NULL, told from other NULLs by flags beside the row.

    `condition` says in SQL, without ever being NULL, whether a column's value does not fit; None: all do.
    """

    def __init__(
        self, read: Read, condition: Callable[[Column], str | None], lost: Counter[str] | None
    ) -> None:
        asked = ((column, condition(column)) for column in read.columns if column.name in read.nulled)
        self._conditions = {column.name: sql for column, sql in asked if sql is not None}
        self._lost: Counter[str] = Counter() if lost is None else lost

    @property
    def flags(self) -> str:
        """What is selected before the columns."""
        return "".join(f"{sql} AS f{number}, " for number, sql in enumerate(self._conditions.values()))

    def projected(
        self, chosen: Sequence[Projection], cast: Callable[[Column], str]
    ) -> tuple[Projection, ...]:
        """Projections whose values are NULL where they do not fit; `cast` keeps a column's type as it is."""
        return tuple(
            replace(each, sql=cast(each.column).format(f"CASE WHEN {sql} THEN NULL ELSE {each.sql} END"))
            if (sql := self._conditions.get(each.column.name))
            else each
            for each in chosen
        )

    def counted(self, raw: pa.RecordBatch) -> pa.RecordBatch:
        """The batch without its flags."""
        for number, name in enumerate(self._conditions):
            found = pc.sum(pc.cast(raw.column(number), pa.int64())).as_py()
            if found:
                self._lost[name] += found
        return raw.select(range(len(self._conditions), raw.num_columns)) if self._conditions else raw


def is_query(read: Read) -> bool:
    """Whether it is a user's SELECT, in brackets, and not a table or a view."""
    return read.relation.startswith("(")


def place(read: Read) -> str:
    """The relation in messages: a table's name, but not all of a user's query."""
    return "the query" if is_query(read) else read.relation


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Around the imports that come with an extra: an executor may lack what the driver has."""
    try:
        yield
    except ModuleNotFoundError as error:
        hint = f"install it with `pip install 'tidegate[{name}]'`, wherever tasks run"
        raise ConfigError(f"the package `{error.name}` is not installed", hint=hint) from error


def rows_at_once(columns: int, wanted: int, most: int) -> int:
    """How many rows a batch may have."""
    return max(1, min(wanted, most, CELLS // columns))


def exact(
    raw: pa.RecordBatch, chosen: Sequence[Projection], schema: pa.Schema, read: Read
) -> Iterator[pa.RecordBatch]:
    """Batches of exactly the declared schema: one, unless the values are so large that it is cut."""
    if raw.nbytes > _LARGE and raw.num_rows > 1:
        middle = raw.num_rows // 2
        yield from exact(raw.slice(0, middle), chosen, schema, read)
        yield from exact(raw.slice(middle), chosen, schema, read)
    elif raw.num_rows:
        yield _exact(raw, chosen, schema, read)


def _exact(
    raw: pa.RecordBatch, chosen: Sequence[Projection], schema: pa.Schema, read: Read
) -> pa.RecordBatch:
    pairs = zip(chosen, raw.columns, schema, strict=True)
    arrays = [_restored(projection, array, field, raw, read) for projection, array, field in pairs]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _restored(
    projection: Projection, array: pa.Array, field: pa.Field, raw: pa.RecordBatch, read: Read
) -> pa.Array:
    column = projection.column
    try:
        restored = projection.restore(array, field.type)
    except Refused as refused:
        raise lossy(read, column, refused.value, row_of(raw, read, refused.row)) from refused
    except Unexpected as unexpected:
        raise changed(read, column, str(unexpected)) from unexpected
    if restored.null_count and not field.nullable:
        raise changed(read, column, "nullable")
    return restored


def lossy(
    read: Read,
    column: Column,
    value: str,
    row: str,
    holder: str | None = None,
    *,
    as_text: bool | None = None,
) -> LossyValue:
    """A value that its type, or what else shall hold it, cannot hold, and what can be decided about it.

    `as_text` says whether text would hold it; None: wherever the column is none yet.
    """
    return LossyValue(
        f"column `{column.name}` holds {value}{row}, which {holder or column.type} cannot hold",
        where=place(read),
        hint=_decisions(read, column, column.type.kind is not Kind.TEXT if as_text is None else as_text),
    )


def _decisions(read: Read, column: Column, as_text: bool) -> str:  # noqa: FBT001 - a fact, not a flag
    if column.name in read.positions:
        return "correct the value, or leave such rows out with a filter: rows are found by this column"
    text = ", or `text` to carry the whole column as text" if as_text else ""
    return (
        f"decide with `columns: {{on_lossy: {{{column.name}: null}}}}` to write NULL and count it{text}; "
        "or correct the value, or leave the column out"
    )


def changed(read: Read, column: Column, now: str) -> TidegateError:
    was = column.native or str(column.type)
    return SourceError(
        f"column `{column.name}` was {was} when the read was planned, and is {now} now",
        where=place(read),
        hint="run it again: the table was altered in between",
    )


def row_of(raw: pa.RecordBatch, read: Read, row: int) -> str:
    """Which row it is, by the columns that order the table."""
    columns = {column.name: number for number, column in enumerate(read.columns) if _shows_as_itself(column)}
    found = [name for name in read.positions if name in columns]
    return named_row((name, _shown(raw.column(columns[name]), row)) for name in found)


def _shows_as_itself(column: Column) -> bool:
    return column.type.kind is not Kind.DECIMAL  # which may have travelled without its point


def named_row(positions: Iterable[tuple[str, str]]) -> str:
    text = ", ".join(f"{name} = {value}" for name, value in positions)
    return f" where {text}" if text else ""


# --- What arrives, and what it has to be -------------------------------------


def integer(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    _demand(array, pa.types.is_integer(array.type))
    return _cast(array, wanted)


def truth(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Booleans, or integers that are 0 or 1."""
    if pa.types.is_boolean(array.type):
        return array
    _demand(array, pa.types.is_integer(array.type))
    _refuse(array, pc.greater(_cast(array, pa.uint64()), pa.scalar(1, pa.uint64())))
    return pc.cast(array, wanted)


def real(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """A float may only become wider: Arrow would round it without a word."""
    _demand(array, pa.types.is_floating(array.type) and array.type.bit_width <= wanted.bit_width)
    return pc.cast(array, wanted)


def decimal(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Decimals of exactly the wanted type, or their digits as text."""
    if array.type == wanted:
        return array
    _demand(array, _is_text(array.type))
    return _cast(text(array, pa.string()), wanted)


def scaled(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Decimals of up to 18 digits that travelled as integers, their point moved to the end."""
    _demand(array, pa.types.is_signed_integer(array.type))
    most = 10**wanted.precision - 1
    ends = pc.min_max(array)
    if (ends["max"].as_py() or 0) > most or (ends["min"].as_py() or 0) < -most:
        _refuse(array, pc.or_(pc.greater(array, most), pc.less(array, -most)))
    whole = pc.cast(pc.cast(array, pa.int64()), pa.decimal128(19, 0))
    return whole.view(wanted)


def text(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Text, or the bytes of text, which are checked to be UTF-8."""
    _demand(array, _is_text(array.type))
    return _cast(array, wanted)


def signed(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Texts behind a sign: `=`, or `!` where the server could not send what is stored."""
    marked = text(array, pa.string())
    plain = pc.utf8_slice_codeunits(marked, 1)
    _refuse(plain, pc.fill_null(pc.starts_with(marked, "!"), False))  # noqa: FBT003 - a NULL is what it is
    return _cast(plain, wanted)


def octets(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    _demand(array, pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type))
    return _cast(array, wanted)


def unchanged(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    _demand(array, array.type == wanted)
    return array


def utc_reading(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """An instant that arrived as the wall clock of a session in UTC."""
    _demand(array, array.type == pa.timestamp("us"))
    return array.view(wanted)


def instant(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Microseconds since 1970 in UTC, whatever zone they would be shown in."""
    _demand(
        array, pa.types.is_timestamp(array.type) and array.type.unit == "us" and array.type.tz is not None
    )
    return array.view(wanted)


def time_of_day(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """PostgreSQL's day has a last moment, 24:00, that nobody else's has."""
    _demand(array, array.type == wanted)
    raw = array.view(pa.int64())
    if (pc.max(raw).as_py() or 0) >= _DAY_MICROSECONDS:
        _refuse(raw, pc.greater_equal(raw, _DAY_MICROSECONDS), "24:00:00")
    return array


def within(restore: Restore, lowest: int, highest: int, value: str) -> Restore:
    """Refuse what stands for infinity, and what ran over the ends of the integer that holds it."""

    def finite(array: pa.Array, wanted: pa.DataType) -> pa.Array:
        restored = restore(array, wanted)
        raw = restored.view(pa.int32() if pa.types.is_date32(wanted) else pa.int64())
        ends = pc.min_max(raw)
        if (ends["max"].as_py() or 0) > highest or (ends["min"].as_py() or 0) < lowest:
            _refuse(raw, pc.or_(pc.greater(raw, highest), pc.less(raw, lowest)), value)
        return restored

    return finite


def _is_text(arrived: pa.DataType) -> bool:
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(kind(arrived) for kind in kinds)


def _demand(array: pa.Array, fits: bool) -> None:  # noqa: FBT001 - a condition, not a flag
    if not fits:
        raise Unexpected(str(array.type))


def _refuse(array: pa.Array, wrong: pa.Array, value: str | None = None) -> None:
    """Raise if any is wrong."""
    row = pc.index(wrong, pa.scalar(True)).as_py()  # noqa: FBT003 - the value looked for
    if row >= 0:
        raise Refused(row, value or _shown(array, row))


def _cast(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """A cast that raises on any loss, naming the first value that does not fit."""
    if array.type == wanted:
        return array
    try:
        return pc.cast(array, wanted)
    except pa.ArrowInvalid:
        row = _first_failing(array, wanted)
        raise Refused(row, _shown(array, row)) from None


def _first_failing(array: pa.Array, wanted: pa.DataType) -> int:
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            pc.cast(array.slice(low, middle - low), wanted)
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low


def _shown(array: pa.Array, row: int) -> str:
    try:
        shown = str(array[row].as_py())
    except (OverflowError, ValueError):  # a date that Python cannot show
        shown = str(array[row].value)
    return shortened(shown)


def shortened(shown: str) -> str:
    """Enough of a value to recognise it by."""
    return shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}…"

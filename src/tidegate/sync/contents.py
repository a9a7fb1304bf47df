"""What rows hold, as digests: they tell whether a row was changed where no column of it says so.

Two rows have the same digest only if the target would get the same from both, to the last bit. Values are
compared as they were staged, so a column that is left out does not count, and a masked one as it was masked.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tidegate.arrow import arrow_schema
from tidegate.core.windows import Window
from tidegate.sources.contract import Source
from tidegate.sources.erasing import Contents, Row
from tidegate.sources.masking import mask
from tidegate.spark.limits import Limited
from tidegate.sync.job import TableJob

_NAN = struct.pack(">d", float("nan"))


def contents_of(source: Source, job: TableJob, told_by: Sequence[str]) -> Contents:
    """How rows of a table are read again, and told by these columns and by all they hold."""
    read = source.chunk(
        job.relation,
        tuple(column.name for column in job.columns),
        Window(None, None),
        positions=job.order,
        order=job.order,
    )
    fitted = replace(read, columns=job.columns, nulled=job.fit.nulled, as_written=job.fit.as_written)
    limited = Limited(fitted, dict(job.fit.limits), Counter())
    staged = arrow_schema(job.schema.columns)
    masks = dict(job.settings.masks)

    def told(batch: pa.RecordBatch) -> Iterator[tuple[Row, bytes]]:
        as_staged = mask(limited.taken(batch), masks, staged)
        rows = zip(*(as_staged.column(name).to_pylist() for name in told_by), strict=True)
        return zip(rows, digested(as_staged, as_staged.schema.names), strict=True)

    return Contents(fitted, told)


def digested(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[bytes]:
    """The digest of each row's values in these columns, whatever their order.

    A column that is not there counts as NULL: that is what the target has in a column which came later.
    """
    columns = [(_sized(name.encode()), _written(batch.column(name))) for name in sorted(names)]
    for row in range(batch.num_rows):
        digest = hashlib.sha256()
        for name, values in columns:
            value = values[row]
            if value is not None:
                digest.update(name + _sized(value))
        yield digest.digest()


def _sized(value: bytes) -> bytes:
    """With its length before it, no value can pass for the end of another."""
    return len(value).to_bytes(8, "big") + value


def _written(values: pa.Array) -> list[bytes | None]:
    """Values as bytes, which differ wherever the values do; days and moments as the numbers they are."""
    kind = values.type
    if pa.types.is_date32(kind):
        values = values.cast(pa.int32())
    elif pa.types.is_temporal(kind):
        values = values.cast(pa.int64())
    write = _float if pa.types.is_floating(kind) else _bytes
    return [None if value is None else write(value) for value in values.to_pylist()]


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _float(value: float) -> bytes:
    """Bit by bit, so that 0.0 is not -0.0, and what is not a number is the same as itself."""
    return _NAN if value != value else struct.pack(">d", value)  # noqa: PLR0124 - NaN is not what it is

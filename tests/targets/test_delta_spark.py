"""Delta tables that Tidegate has loaded, and Spark, the reader and writer that most people have."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.core.strategies import FileLayout, WriteMode
from tidegate.core.types import DataType, Kind
from tidegate.targets.delta import DeltaTarget
from tidegate.testing.targets import Stage, orders, schema_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = schema_of(
    "id",
    id=Kind.UINT64,
    at=DataType(Kind.TIMESTAMP, 6),
    day=Kind.DATE,
    moment=Kind.INSTANT,
    clock=Kind.TIME,
    small=Kind.UINT8,
    price=DataType(Kind.DECIMAL, 12, 2),
    share=Kind.FLOAT64,
    flag=Kind.BOOL,
    data=Kind.BYTES,
    uuid=Kind.UUID,
    note=Kind.TEXT,
)
AT = datetime(2025, 3, 30, 2, 30, 0, 123456)  # noqa: DTZ001 - a reading that no clock in Berlin shows
MOMENT = datetime(2025, 3, 30, 1, 30, tzinfo=UTC)
UUID = "00000000-0000-4000-8000-000000000001"


def row(
    number: int, note: str | None, *, at: datetime = AT, day: date | None = date(2025, 3, 30)
) -> tuple[object, ...]:
    values = (MOMENT, 86_399_500_000, 255, Decimal("-1.25"), 0.1, True, b"\x00\xff", UUID)
    return (number, at, day, *values, note)


def test_spark_reads_what_was_loaded_and_tidegate_goes_on_with_what_spark_wrote(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "stage").mkdir()
    stage, target = Stage(tmp_path / "stage"), DeltaTarget(tmp_path / "lake")
    table = orders(WriteMode.MERGE, files=FileLayout(("day",), ("id",)))
    path = f"delta.`{tmp_path / 'lake' / 'orders'}`"
    target.prepare(table, SCHEMA)
    first = [row(2**64 - 1, "largest"), row(2, None), row(3, "c", day=None), row(5, "e")]
    target.load(table, [stage.segment(SCHEMA, first)], generation=1, fence=1)

    assert dict(spark.table(path).dtypes) == {
        "id": "decimal(20,0)",
        "at": "timestamp_ntz",
        "day": "date",
        "moment": "timestamp",
        "clock": "string",
        "small": "smallint",
        "price": "decimal(12,2)",
        "share": "double",
        "flag": "boolean",
        "data": "binary",
        "uuid": "string",
        "note": "string",
        "_tidegate_run": "bigint",
    }
    wanted = "note = 'largest' AND day = DATE '2025-03-30' AND moment = TIMESTAMP '2025-03-30 01:30:00Z'"
    [found] = spark.sql(f"SELECT * FROM {path} WHERE {wanted}").collect()
    assert found.asDict() | {"moment": None} == {
        "id": Decimal(2**64 - 1),
        "at": AT,
        "day": date(2025, 3, 30),
        "moment": None,
        "clock": "23:59:59.5",
        "small": 255,
        "price": Decimal("-1.25"),
        "share": 0.1,
        "flag": True,
        "data": bytearray(b"\x00\xff"),
        "uuid": UUID,
        "note": "largest",
        "_tidegate_run": 1,
    }
    five = spark.table(path).where("id = 5")
    six, seven = (five.selectExpr(f"CAST({n} AS DECIMAL(20,0)) AS id", "* EXCEPT (id)") for n in (6, 7))
    six.unionAll(seven).coalesce(1).write.format("delta").mode("append").save(
        str(tmp_path / "lake" / "orders")
    )

    later = [stage.segment(SCHEMA, [row(3, "late", at=AT.replace(year=2020)), row(4, "d")], run=2)]
    newest = [row(number, "newest", at=AT.replace(year=2026)) for number in (6, 2**64 - 1)]
    newer = [stage.segment(SCHEMA, newest, run=3)]
    for segments, entered in ((later, 1), (newer, 2), ([*later, *newer], 0)):
        assert target.load(table, segments, generation=1, fence=1) == entered
    rows = spark.sql(f"SELECT id, note, moment FROM {path} ORDER BY id").collect()
    assert [(int(r["id"]), r["note"]) for r in rows] == [
        (2, None),
        (3, "c"),
        (4, "d"),
        (5, "e"),
        (6, "newest"),
        (7, "e"),
        (2**64 - 1, "newest"),
    ]
    assert len({r["moment"] for r in rows}) == 1
    assert target.count("orders") == 7

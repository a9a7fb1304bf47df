"""After a takeover from the S3-Redshift backup tool source and warehouse agree: no row lost, none doubled."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.system.conftest import Build, Place
from tests.system.shop import HYBRID, LONG_AGO
from tidegate.config.project import Project
from tidegate.core.older import OlderFormat, read_older
from tidegate.core.watermark import StreamId
from tidegate.sync.job import describe
from tidegate.sync.takeover import Wish, take_over

TABLE = """CREATE TABLE orders
    (id BIGINT, customer VARCHAR, amount DECIMAL(12,2), note VARCHAR, updated_at TIMESTAMP)"""


@pytest.fixture
def place(build: Build) -> Place:
    """A table of 40 rows, a second apart; the older tool has loaded the first 30, except row 7."""
    place = build("mariadb-duckdb")
    place.shop.create()
    place.shop.insert(40)
    place.warehouse.execute(TABLE)
    for row in place.shop.rows()[:30]:
        if row[0] != 7:
            number, customer, amount, note, moment = row
            text = "NULL" if note is None else f"'{note}'"
            values = f"{number}, '{customer}', {amount}, {text}, TIMESTAMP '{moment}'"
            place.warehouse.execute(f"INSERT INTO orders VALUES ({values})")
    return place


def taken_over(place: Place, **options: Any) -> None:
    place.configure({"orders": {**HYBRID, **options}})
    document = {
        "table_name": "orders",
        "last_mysql_data_timestamp": f"{LONG_AGO + timedelta(seconds=29):%Y-%m-%dT%H:%M:%S}Z",
        "last_processed_id": 30,
        "mysql_state": {"status": "success", "total_rows": 29, "last_session_rows": 29},
        "s3_state": {"backup_s3_files": [], "processed_s3_files": ["chunk_001.parquet"]},
        "redshift_state": {"status": "success", "rows_loaded": 29},
    }
    settings = Project.load(place.folder).pipeline("shop").settings_for("orders")
    parts = place.parts()
    job = describe(parts.source(), settings, StreamId("shop", "orders"))
    parts.close()
    older = read_older(document, OlderFormat.V2, "orders.json")
    plan = take_over(older, job, Wish(), datetime.now(UTC))
    with place.by_hand().taking_over(plan.mark, plan.document, reason="moving house") as begin:
        assert begin is not None
        begin()


def test_where_rows_are_merged_late_rows_below_the_mark_come_too(place: Place) -> None:
    taken_over(place)
    place.synced()
    place.agree()


def test_where_rows_are_appended_none_is_there_twice(place: Place) -> None:
    taken_over(place, write_mode="append")
    place.synced()
    assert [row[0] for row in place.warehouse.rows()] == [n for n in range(1, 41) if n != 7]

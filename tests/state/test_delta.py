"""The tables of the Delta store, as any Delta reader finds them, and what happens when others write too."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from deltalake import DeltaTable

from tests.servers import S3Server
from tidegate.core.errors import Conflict, StateError
from tidegate.delta_log import DeltaLog, Overtaken
from tidegate.state.delta import HISTORY, WATERMARKS, DeltaStore
from tidegate.state.opening import open_store
from tidegate.testing.stores import NOW, STREAM, event, mark, take
from tidegate.tracker import WatermarkTracker

HOUR = timedelta(hours=1)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def rows(lake: Path, table: str, *columns: str) -> list[tuple[Any, ...]]:
    found = DeltaTable(lake / table).to_pyarrow_table(columns=list(columns)).to_pylist()
    return sorted(tuple(row[name] for name in columns) for row in found)


def test_the_table_has_the_columns_that_people_know(lake: Path) -> None:
    with WatermarkTracker(f"delta://{lake}") as tracker, tracker.run("wos"):
        pass
    table = DeltaTable(lake / WATERMARKS)
    types = {field.name: str(field.type).split('"')[1] for field in table.schema().fields}
    assert list(types.items())[:18] == [
        ("watermark_id", "integer"),
        ("pipeline_name", "string"),
        ("job_id", "string"),
        ("last_processed_ts", "timestamp"),
        ("current_run_ts", "timestamp"),
        ("last_processed_version", "long"),
        ("status", "string"),
        ("created_at", "timestamp"),
        ("updated_at", "timestamp"),
        ("table_name", "string"),
        ("run_id", "string"),
        ("start_version", "long"),
        ("end_version", "long"),
        ("schema_version", "string"),
        ("records_processed", "long"),
        ("execution_duration", "double"),
        ("error_message", "string"),
        ("failed_at", "timestamp"),
    ]
    assert table.metadata().partition_columns == ["pipeline_name"]
    assert DeltaTable(lake / HISTORY).metadata().partition_columns == ["pipeline_name"]


def test_a_record_stays_once_it_is_done_and_success_opens_the_next(lake: Path) -> None:
    moments = count()
    tracker = WatermarkTracker(f"delta://{lake}", clock=lambda: NOW + next(moments) * HOUR)
    for job in ("job_1", "job_2"):
        with tracker.run("wos", job):
            pass
    with pytest.raises(ZeroDivisionError), tracker.run("wos", "job_3"):
        _ = 1 // 0
    with tracker.run("pprn", "job_1"):
        pass
    assert rows(lake, WATERMARKS, "watermark_id", "pipeline_name", "status", "job_id") == [
        (1, "wos", "SUCCESS", "job_1"),
        (2, "wos", "SUCCESS", "job_2"),
        (3, "wos", "FAILED", "job_3"),
        (4, "pprn", "SUCCESS", "job_1"),
        (5, "pprn", "READY", None),
    ]
    windows = rows(lake, WATERMARKS, "watermark_id", "last_processed_ts", "current_run_ts")
    assert windows[0][2] == windows[1][1]
    assert windows[1][2] == windows[2][1]
    told = rows(lake, HISTORY, "seq", "event", "status", "error_message", "pipeline_name")
    assert [row[1:4] for row in told if row[4] == "wos"][-1] == (
        "failed",
        "FAILED",
        "ZeroDivisionError: integer division or modulo by zero",
    )
    assert len(told) == 4 * 3


def test_the_log_stays_short_to_read_however_often_it_is_written(lake: Path) -> None:
    with closing(DeltaStore(lake)) as store:
        lease = take(store)
        for version in range(130):
            store.write(mark(number=version + 1), expected=version, lease=lease, events=[event(version + 1)])
        assert [item.data["number"] for item in store.history(STREAM)] == list(range(1, 131))
    for name in (WATERMARKS, HISTORY):
        table = DeltaTable(lake / name)
        assert len(table.file_uris()) <= 51
        assert list((lake / name / "_delta_log").glob("*.checkpoint.parquet"))
    assert rows(lake, HISTORY, "seq") == [(number,) for number in range(1, 131)]


def test_a_commit_on_an_older_version_lands_nothing(lake: Path) -> None:
    with closing(DeltaStore(lake)) as store:
        store.write(mark(number=1), expected=0, lease=take(store))
    logs = [
        DeltaLog(str(lake / WATERMARKS), _schema(lake), {}, indexed=["watermark_id", "stream_key", "seq"])
        for _ in range(2)
    ]
    for log in logs:
        log.ensure()
        log.refresh()
    logs[0].commit([{"pipeline_name": "shop", "stream_key": "a", "version": 0}])
    for instead_of in (None, "stream_key = 'b'"):
        logs[1].refresh()
        logs[0].commit([{"pipeline_name": "shop", "stream_key": "a", "version": 0}])
        with pytest.raises(Overtaken):
            logs[1].commit([{"pipeline_name": "shop", "stream_key": "b"}], instead_of=instead_of)
    assert ("b",) not in rows(lake, WATERMARKS, "stream_key")


def _schema(lake: Path) -> Any:
    return DeltaTable(lake / WATERMARKS).to_pyarrow_dataset().schema


def test_events_that_did_not_reach_the_history_are_appended_later_and_once(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(DeltaStore(lake)) as store:
        lease = take(store)
        with monkeypatch.context() as broken:
            broken.setattr(DeltaStore, "_append", _full_disk)
            store.write(mark(number=1), expected=0, lease=lease, events=[event(1)])
        assert not (lake / HISTORY).exists()
        assert [item.data["number"] for item in store.history(STREAM)] == [1]
    for _ in range(2):
        with closing(DeltaStore(lake)) as store:
            version = store.read(STREAM).version
            store.write(mark(number=2), expected=version, lease=lease, events=[event(version + 1)])
            store.write(mark(number=2), expected=version + 1, lease=lease)
    assert rows(lake, HISTORY, "seq", "event") == [(1, "counted"), (2, "counted"), (3, "counted")]


def _full_disk(_: DeltaStore, documents: list[object]) -> None:
    if documents:
        raise StateError("no space left")


def test_writers_in_a_bucket_lose_no_update(fresh_bucket: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", fresh_bucket.access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", fresh_bucket.secret_access_key)
    endpoint = quote(fresh_bucket.endpoint_url, safe="")
    url = f"delta+s3://{fresh_bucket.bucket}/lake?region={fresh_bucket.region}&endpoint_url={endpoint}"
    with closing(open_store(url)) as store:
        lease = take(store)

    def count_up(_: int) -> None:
        with closing(open_store(url)) as store:
            done = 0
            while done < 3:
                stored = store.read(STREAM)
                number = stored.version + 1
                try:
                    store.write(
                        mark(number=number), expected=stored.version, lease=lease, events=[event(number)]
                    )
                except Conflict:
                    continue
                done += 1

    with ThreadPoolExecutor(4) as pool:
        _ = list(pool.map(count_up, range(4)))
    with closing(open_store(url)) as store:
        assert store.read(STREAM).watermark == mark(number=12)
        assert [item.data["number"] for item in store.history(STREAM)] == list(range(1, 13))
        store.release(STREAM, lease)
        assert store.read(STREAM).lease is None
    with WatermarkTracker(url) as tracker, tracker.run("wos") as run:
        assert run.window.end < datetime.now(UTC)

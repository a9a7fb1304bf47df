"""Watermarks of the S3-Redshift backup tool: taken over without losing or doubling a row, and given back."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run, Shop
from tidegate.config.settings import TableOrder
from tidegate.core.older import OlderFormat
from tidegate.core.positions import Position
from tidegate.core.watermark import StreamId
from tidegate.sync.handback import older_document

V1: dict[str, Any] = {
    "table_name": "orders",
    "last_mysql_extraction_time": "2025-08-14T16:45:33.123456Z",
    "last_mysql_data_timestamp": "2025-08-14T15:30:22Z",
    "mysql_rows_extracted": 1250000,
    "mysql_status": "success",
    "last_redshift_load_time": "2025-08-14T17:12:45.654321Z",
    "redshift_rows_loaded": 1250000,
    "redshift_status": "success",
    "backup_strategy": "sequential",
    "s3_file_count": 250,
    "processed_s3_files": ["s3://bucket/path/file1.parquet", "s3://bucket/path/file2.parquet"],
    "last_error": None,
    "created_at": "2025-08-14T20:58:18.585905Z",
    "updated_at": "2025-08-14T22:45:33.970251Z",
    "metadata": {
        "manual_watermark": False,
        "total_processing_time_seconds": 4320,
        "average_batch_size": 5000,
    },
}
V2: dict[str, Any] = {
    "table_name": "orders",
    "last_mysql_data_timestamp": "2025-11-27T15:30:00Z",
    "last_processed_id": 1000000,
    "mysql_state": {"status": "success", "total_rows": 5000000, "last_session_rows": 50000},
    "s3_state": {
        "backup_s3_files": [],
        "processed_s3_files": ["chunk_001.parquet", "chunk_002.parquet"],
    },
    "redshift_state": {"status": "success", "rows_loaded": 5000000},
}
MERGED = """
pipeline: {name: shop, source: shop, target: warehouse, staging: files, state: default}
tables:
  orders: {cdc_timestamp_column: updated_at, cdc_id_column: id}
"""
APPENDED = MERGED.replace("id}", "id, write_mode: append}")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


class Older:
    """A project that takes over from files."""

    def __init__(self, shop: Shop, run: Run) -> None:
        self.shop, self.run, self.file = shop, run, shop.root / "orders.json"
        self.shop.pipeline(MERGED)

    def take(self, document: dict[str, Any], *more: str, form: str | None = None) -> Any:
        self.file.write_text(json.dumps(document))
        chosen = form or ("s3-redshift-v2" if "mysql_state" in document else "s3-redshift-v1")
        return self.run("watermark", "import", str(self.file), "--format", chosen, "--yes", *more)

    def refused(self, document: dict[str, Any], *more: str) -> str:
        result = self.take(document, *more)
        assert result.exit_code == 2, result.output
        assert self.shop.store.read(StreamId("shop", "orders")).watermark is None
        return str(result.stderr)

    def position(self) -> Position | None:
        return self.shop.mark().extracted.position

    def back(self, form: str) -> dict[str, Any]:
        path = self.shop.root / "back.json"
        result = self.run("watermark", "export", str(path), "--format", form, "-t", "orders")
        assert result.exit_code == 0, result.output
        return dict(json.loads(path.read_text()))


@pytest.fixture
def older(shop: Shop, run: Run) -> Older:
    return Older(shop, run)


def test_where_rows_are_merged_a_day_before_the_mark_is_read_again(older: Older) -> None:
    result = older.take(V1)
    assert result.exit_code == 0, result.stderr
    assert older.position() == Position.of(at("2025-08-13 15:30:22"))
    mark = older.shop.mark()
    assert mark.loaded.position == mark.extracted.position
    assert (mark.extracted.rows_total, mark.loaded.rows_total) == (1250000, 1250000)
    assert "250 files of the older tool stay where they are" in result.stderr
    assert "1 d 0 h before the mark are read again and merged" in result.stderr


def test_where_rows_are_appended_the_mark_is_taken_to_the_row(older: Older) -> None:
    older.shop.pipeline(APPENDED)
    result = older.take(V2)
    assert older.position() == Position.of(at("2025-11-27 15:30:00"), 1000000)
    assert "rows that were committed late" in result.stderr


def test_how_far_is_read_again_can_be_said(older: Older) -> None:
    older.take(V2, "--look-back", "0.5")
    assert older.position() == Position.of(at("2025-11-27 15:00:00"))


def test_the_letter_z_means_nothing_for_a_clock_without_a_zone(older: Older) -> None:
    older.shop.pipeline(MERGED.replace("cdc_id_column: id", "cursor_timezone: Asia/Tokyo"))
    older.take(V1, "--look-back", "0")
    assert older.position() == Position.of(at("2025-08-14 15:30:22"))


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (
            V2 | {"s3_state": {"backup_s3_files": ["a.parquet", "b.parquet"]}},
            "2 files of the older tool wait",
        ),
        (V2 | {"mysql_state": {**V2["mysql_state"], "status": "in_progress"}}, "was at work"),
        (V2 | {"redshift_state": {"status": "failed", "rows_loaded": 5000000}}, "last load is `failed`"),
        (V2 | {"redshift_state": {"status": "success", "rows_loaded": 4999999}}, "loaded 4,999,999"),
        (V1 | {"redshift_status": "pending"}, "last load is `pending`"),
        (V1 | {"redshift_rows_loaded": 7}, "extracted 1,250,000 rows and loaded 7"),
        (V1 | {"mysql_status": "running"}, "was at work"),
    ],
)
def test_what_the_warehouse_may_lack_is_refused(older: Older, document: Any, words: str) -> None:
    said = older.refused(document)
    assert words in said
    assert "--redshift-only" in said


def test_then_somebody_says_from_where_to_read_again(older: Older) -> None:
    unfinished = V2 | {"s3_state": {"backup_s3_files": ["a.parquet"]}}
    result = older.take(unfinished, "--begin", "2025-11-01 00:00:00")
    assert result.exit_code == 0
    assert older.position() == Position.of(at("2025-11-01 00:00:00"))
    assert "rows after 2025-11-01 00:00:00 are read again" in result.stderr


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (V1 | {"last_mysql_data_timestamp": "2999-01-01T00:00:00Z"}, "lies in the future"),
        (V1 | {"last_mysql_data_timestamp": "yesterday"}, "is not a timestamp"),
        (V1 | {"mysql_rows_extracted": -1}, "the watermark is damaged"),
        (V2 | {"mysql_state": "gone"}, "the watermark is damaged"),
        ({"some": "thing"}, "no watermark of the S3-Redshift backup tool"),
        (V1 | {"table_name": "ordres"}, "did you mean `orders`?"),
    ],
)
def test_a_damaged_watermark_is_refused(older: Older, document: Any, words: str) -> None:
    assert words in older.refused(document)


def test_the_other_form_is_named(older: Older) -> None:
    result = older.take(V1, form="s3-redshift-v2")
    assert (result.exit_code, "of the form s3-redshift-v1" in result.stderr) == (2, True)


def test_a_table_that_follows_ids_needs_an_id(older: Older) -> None:
    older.shop.pipeline(MERGED.replace("cdc_timestamp_column: updated_at, ", ""))
    assert "has no id" in older.refused(V1)
    assert older.take(V2).exit_code == 0
    assert older.position() == Position.of(1000000)


def test_a_table_that_the_older_tool_never_read_begins_at_the_beginning(older: Older) -> None:
    nothing = {"table_name": "orders", "mysql_state": {}, "s3_state": {}, "redshift_state": {}}
    result = older.take(nothing)
    assert (result.exit_code, older.position()) == (0, None)
    assert "begins at the beginning" in result.stderr


def test_a_table_with_a_mark_of_its_own_keeps_it(older: Older) -> None:
    older.shop.extract(hours=1)
    before = older.shop.mark()
    result = older.take(V2)
    assert (result.exit_code, "has a mark of its own" in result.stderr) == (2, True)
    assert older.shop.mark() == before


def test_a_takeover_is_refused_while_a_run_holds_the_table(older: Older) -> None:
    with older.shop.hold():
        assert older.take(V2).exit_code == 3


def test_a_takeover_is_in_the_history_with_all_that_was_written_before(older: Older) -> None:
    older.take(V2 | {"odd": 1}, "--reason", "moving house")
    [event] = older.shop.store.history(StreamId("shop", "orders"))
    assert (event.kind, event.data["act"], event.data["reason"]) == ("manual", "import", "moving house")
    assert event.data["older"] == V2 | {"odd": 1}


def test_a_folder_of_watermarks_is_taken_over_at_once(older: Older, tmp_path: Path) -> None:
    folder = tmp_path / "v2"
    folder.mkdir()
    (folder / "orders.json").write_text(json.dumps(V2))
    result = older.run("watermark", "import", str(folder), "--format", "s3-redshift-v2", "--yes")
    assert (result.exit_code, "1 marks taken over" in result.output) == (0, True)


TWO = MERGED + "  things: {cdc_id_column: id}\n"


@pytest.fixture
def two(older: Older) -> Path:
    """A folder with the watermarks of two tables."""
    older.shop.execute("CREATE TABLE things (id INTEGER PRIMARY KEY);")
    older.shop.pipeline(TWO)
    folder = older.shop.root / "v2"
    folder.mkdir()
    for table in ("orders", "things"):
        (folder / f"{table}.json").write_text(json.dumps(V2 | {"table_name": table}))
    return folder


def test_of_a_folder_all_tables_are_taken_over_or_none(older: Older, two: Path) -> None:
    taken = ("watermark", "import", str(two), "--format", "s3-redshift-v2", "--yes")
    with older.shop.hold("things"):
        assert older.run(*taken).exit_code == 3
        assert older.shop.store.read(StreamId("shop", "orders")).watermark is None
    assert older.run(*taken).exit_code == 0
    before = older.shop.mark()
    assert older.run(*taken).exit_code == 0  # as after an interruption between the two
    assert older.shop.mark() == before


def test_a_folder_is_finished_though_one_of_its_tables_has_gone_on_since(older: Older, two: Path) -> None:
    """Somebody syncs between an act that was interrupted and its repetition."""
    taken = ("watermark", "import", str(two), "--format", "s3-redshift-v2", "--yes")
    assert older.run(*taken, "-t", "orders").exit_code == 0
    older.shop.extract(hours=6000)
    before = older.shop.mark()
    again = older.run(*taken)
    assert (again.exit_code, "1 marks taken over; 1 had been before" in again.output) == (0, True)
    assert older.shop.mark() == before
    assert older.shop.mark("things").extracted.position == Position.of(1000000)
    assert older.run(*taken, "--look-back", "1").exit_code == 2  # another act: it would move the mark


def test_two_files_of_one_table_are_refused(older: Older, two: Path) -> None:
    (two / "older.json").write_text(json.dumps(V2))
    result = older.run("watermark", "import", str(two), "--format", "s3-redshift-v2", "--yes")
    assert (result.exit_code, "several of the files are of shop/orders" in result.stderr) == (2, True)


def test_what_was_taken_over_is_written_back_with_every_field(older: Older) -> None:
    older.take(V1, "--look-back", "0")
    back = older.back("s3-redshift-v1")
    changed = {"updated_at", "metadata"}
    assert {k: v for k, v in back.items() if k not in changed} == {
        k: v for k, v in V1.items() if k not in changed
    }
    assert back["metadata"] == {**V1["metadata"], "manual_watermark": True}


def test_the_second_form_is_written_back_too(older: Older) -> None:
    older.take(V2, "--look-back", "0")
    back = older.back("s3-redshift-v2")
    assert {key: back[key] for key in V2} == V2


def test_one_form_is_written_back_as_the_other(older: Older) -> None:
    early = {"backup_strategy": "inter-table", "last_mysql_data_timestamp": "2025-08-01T10:00:00Z"}
    older.take(V1 | early, "--look-back", "0")
    newer = older.back("s3-redshift-v2")
    assert newer["metadata"] == {
        **V1["metadata"],
        "manual_watermark": True,
        "backup_strategy": "inter-table",
        "s3_file_count": 250,
    }
    older.shop.extract(hours=1, rows=10)
    assert older.back("s3-redshift-v2")["metadata"]["total_processing_time_seconds"] > 4320


def test_a_mark_on_a_day_is_written_as_the_moment_it_begins(older: Older) -> None:
    older.take(V2, "--look-back", "0")
    mark = older.shop.mark()
    on_a_day = replace(mark, extracted=replace(mark.extracted, position=Position((date(2025, 8, 1),))))
    for form in OlderFormat:
        document = older_document(on_a_day, [], form, url=str, order=TableOrder.SEQUENTIAL, held=False)
        assert document["last_mysql_data_timestamp"] == "2025-08-01T00:00:00Z"


@pytest.mark.parametrize(
    "document",
    [
        V1 | {"metadata": None, "processed_s3_files": None, "s3_file_count": None},
        V1 | {"metadata": {"total_processing_time_seconds": None, "by": "me"}},
        V2 | {"s3_state": None, "metadata": {"by": "me"}},
        V2 | {"s3_state": {"processed_s3_files": None}, "metadata": []},
    ],
)
def test_what_a_file_leaves_empty_is_written_back_too(older: Older, document: Any) -> None:
    older.take(document, "--look-back", "0")
    for form in ("s3-redshift-v1", "s3-redshift-v2"):
        back = older.back(form)
        assert (back["table_name"], back["last_mysql_data_timestamp"]) == (
            "orders",
            document["last_mysql_data_timestamp"],
        )
        assert back["metadata"].get("by") == dict(document["metadata"] or {}).get("by")


def test_tables_of_two_pipelines_do_not_write_over_each_other(older: Older, two: Path) -> None:
    """The older tool knows no pipelines: its files have the names of tables."""
    other = older.shop.root / "config/pipelines/other.yml"
    other.write_text(MERGED.replace("name: shop", "name: other"))
    taken = ("watermark", "import", str(two), "--format", "s3-redshift-v2", "--yes", "-t", "orders")
    for pipeline in ("shop", "other"):
        assert older.run(*taken, "-p", pipeline).exit_code == 0
    before = (two / "orders.json").read_text()
    back = ("watermark", "export", str(two), "--format", "s3-redshift-v2")
    result = older.run(*back, "--all")
    assert (result.exit_code, "would go into the same file" in result.stderr) == (2, True)
    assert (two / "orders.json").read_text() == before
    assert older.run(*back, "-p", "other").exit_code == 0


def test_files_batches_strategy_and_times_come_from_the_history(older: Older) -> None:
    older.shop.extract(hours=1, rows=10)
    older.shop.load()
    older.shop.extract(hours=2, rows=30)
    back = older.back("s3-redshift-v1")
    assert (back["s3_file_count"], len(back["processed_s3_files"])) == (2, 1)
    assert (back["mysql_rows_extracted"], back["redshift_rows_loaded"]) == (40, 10)
    assert (back["mysql_status"], back["redshift_status"]) == ("success", "pending")
    assert back["backup_strategy"] == "inter-table", "as the runs went, not as the pipeline is configured"
    assert back["metadata"]["average_batch_size"] == 20
    assert back["metadata"]["total_processing_time_seconds"] > 0
    newer = older.back("s3-redshift-v2")
    assert newer["last_mysql_data_timestamp"] == "2025-08-01T14:00:00Z"
    assert newer["last_processed_id"] == 102
    assert len(newer["s3_state"]["backup_s3_files"]) == 1
    assert newer["s3_state"]["backup_s3_files"][0].endswith(".parquet")

"""Where objects lie in staging."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tidegate.config.settings import Layout
from tidegate.core.watermark import StreamId
from tidegate.staging.layout import SegmentPath, is_marker, run_of, safe_name

RUN = "20251128T140000-0a1b2c3d"
FILE = f"settlement_settle_orders_20251128_140000_batch_0001_{RUN}_a1.parquet"


def paths(
    layout: Layout = Layout.DATETIME, prefix: str = "", table: str = "settlement.settle_orders"
) -> SegmentPath:
    return SegmentPath(layout, prefix, StreamId("us_dw", table), RUN, datetime(2025, 11, 28, 14, tzinfo=UTC))


@pytest.mark.parametrize(
    ("layout", "folder"),
    [
        (Layout.DATETIME, "year=2025/month=11/day=28/hour=14"),
        (Layout.TABLE, "table=settlement_settle_orders/year=2025/month=11/day=28"),
        (Layout.HYBRID, "year=2025/month=11/table=settlement_settle_orders/day=28/hour=14"),
    ],
)
def test_layouts_sort_files_into_folders(layout: Layout, folder: str) -> None:
    assert paths(layout).segment(1, "a1") == f"{folder}/{FILE}"


@pytest.mark.parametrize("prefix", ["team/shop", "team/shop/", "/team/shop/"])
def test_an_isolation_prefix_is_a_folder_around_everything(prefix: str) -> None:
    found = paths(prefix=prefix)

    assert found.segment(1, "a1") == f"team/shop/year=2025/month=11/day=28/hour=14/{FILE}"
    assert found.receipt(1, "a1") == f"team/shop/{paths().receipt(1, 'a1')}"
    assert found.marker == f"team/shop/_runs/us_dw/settlement_settle_orders/{RUN}/_SUCCESS"


def test_every_object_says_which_run_it_belongs_to() -> None:
    found = paths(prefix="team")

    assert {run_of(key) for key in (found.segment(7, "a1"), found.receipt(7, "a1"), found.marker)} == {RUN}
    assert [is_marker(key) for key in (found.segment(7, "a1"), found.receipt(7, "a1"), found.marker)] == [
        False,
        False,
        True,
    ]
    for foreign in ("notes.txt", "orders.parquet", "_SUCCESS", "year=2025/_SUCCESS"):
        assert run_of(foreign) is None
        assert not is_marker(foreign)


def test_receipts_are_in_the_order_of_their_chunks_however_many_there_are() -> None:
    keys = [paths().receipt(chunk, "a1") for chunk in (1, 9, 10, 999_999, 1_000_000, 12_345_678)]

    assert keys == sorted(keys)
    for chunk, key in ((1, keys[0]), (1_000_000, keys[4])):
        assert paths().before_receipts(chunk) < key < paths().before_receipts(chunk + 1)


def test_names_fit_into_a_path_in_any_script() -> None:
    assert safe_name("a/b c") == "a_b_c"
    assert safe_name("...") == "unnamed"
    assert safe_name("注文" * 100).encode() == ("注文" * 100).encode()[:99]


def test_what_a_load_puts_beside_a_segment_belongs_to_the_segments_run() -> None:
    segment = "shop/year=2025/orders_20250101_000000_batch_0001_20250101T000000-ab12_cd34.parquet"
    folder, _, name = segment.rpartition("/")
    for kind in ("manifest", "parquet"):
        beside = f"{folder}/_loads/{name.removesuffix('.parquet')}-0f0f.{kind}"
        assert run_of(beside) == run_of(segment) == "20250101T000000-ab12"

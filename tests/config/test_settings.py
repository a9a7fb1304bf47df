from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.config.conftest import Folder
from tidegate.config.settings import Compression, Layout, Processing, Retries, TableOrder, TableSettings
from tidegate.core.lossy import LossyPolicy, OnLossy
from tidegate.core.quality import Rules
from tidegate.core.strategies import CeilingSettings, Cursor, Mask, NullCursorPolicy, Strategy, WriteMode

SHOP = "config/pipelines/shop.yml"
TIMESTAMP = Strategy.TIMESTAMP_ONLY


def settings(folder: Folder, options: str, pipeline: str = "") -> TableSettings:
    return folder.table(options, pipeline).open().settings_for("orders")


@pytest.mark.parametrize(
    ("options", "strategy", "columns"),
    [
        ("cdc_timestamp_column: t", TIMESTAMP, ("t",)),
        ("{cdc_timestamp_column: t, cdc_id_column: i}", Strategy.HYBRID, ("t", "i")),
        ("cdc_id_column: i", Strategy.ID_ONLY, ("i",)),
        ("query: SELECT 1", Strategy.CUSTOM_SQL, ()),
        ("{query: SELECT 1, cdc_id_column: i}", Strategy.CUSTOM_SQL, ("i",)),
        ("{cdc_strategy: full_sync, cdc_id_column: i}", Strategy.FULL_SYNC, ()),
        ("{cdc_strategy: timestamp_only, cdc_timestamp_column: t, cdc_id_column: i}", TIMESTAMP, ("t",)),
        ("{cdc_strategy: id_only, cdc_timestamp_column: t, cdc_id_column: i}", Strategy.ID_ONLY, ("i",)),
    ],
)  # fmt: skip
def test_the_strategy_follows_from_the_columns_unless_it_is_named(
    folder: Folder, options: str, strategy: Strategy, columns: tuple[str, ...]
) -> None:
    found = settings(folder, options)
    assert (found.strategy, found.cursor.columns) == (strategy, columns)
    assert found.incremental is bool(columns)


def test_with_nothing_said_the_built_in_defaults_apply(folder: Folder) -> None:
    found = settings(folder, "cdc_id_column: id")
    lossy = LossyPolicy("sqlite", "duckdb")
    assert found == TableSettings("orders", "orders", Strategy.ID_ONLY, Cursor(id="id"), lossy=lossy)
    assert (found.batch_size, found.parallelism, found.compression) == (50_000, None, Compression.SNAPPY)
    assert found.retries == Retries(3, timedelta(seconds=2))
    assert found.ceiling == CeilingSettings()


def test_the_pipeline_speaks_for_its_tables(folder: Folder) -> None:
    pipeline = """
    write_mode: append
    null_cursor: skip
    on_lossy: "null"
    cursor_timezone: Europe/Berlin
    default_start: 2025-01-01 00:00:00
    processing: {batch_size: 10, parallelism: 2}
    retries: {max: 5, backoff_seconds: 1m}
    ceiling: {lag: 2, fallback_lag: 1h, ignore: [etl], lookback_ids: 7}
    s3: {isolation_prefix: shop/, partition_strategy: hybrid, compression: zstd}
    """
    found = settings(folder, "{cdc_timestamp_column: t, cdc_id_column: id}", pipeline)
    assert found == TableSettings(
        table="orders",
        target_name="orders",
        strategy=Strategy.HYBRID,
        cursor=Cursor("t", "id", "Europe/Berlin"),
        write_mode=WriteMode.APPEND,
        null_cursor=NullCursorPolicy.SKIP,
        default_start=datetime(2025, 1, 1),  # noqa: DTZ001 - a reading of the column's own clock
        ceiling=CeilingSettings(
            lag=timedelta(seconds=2), fallback_lag=timedelta(hours=1), ignore=("etl",), lookback_ids=7
        ),
        batch_size=10,
        parallelism=2,
        retries=Retries(5, timedelta(minutes=1)),
        layout=Layout.HYBRID,
        prefix="shop/",
        compression=Compression.ZSTD,
        lossy=LossyPolicy("sqlite", "duckdb", OnLossy.NULL),
    )


def test_the_table_goes_before_the_pipeline_key_by_key(folder: Folder) -> None:
    pipeline = """
    write_mode: append
    null_cursor: skip
    processing: {batch_size: 10, parallelism: 2}
    retries: {max: 5, backoff_seconds: 9}
    ceiling: {lag: 2, max_wait: 3}
    """
    options = """
    cdc_id_column: id
    write_mode: merge
    null_cursor: include
    processing: {batch_size: 20}
    retries: {max: 0}
    ceiling: {lag: 0.5}
    """
    found = settings(folder, options, pipeline)
    assert (found.write_mode, found.null_cursor) == (WriteMode.MERGE, NullCursorPolicy.INCLUDE)
    assert (found.batch_size, found.parallelism) == (20, 2)
    assert found.retries == Retries(0, timedelta(seconds=9))
    assert (found.ceiling.lag, found.ceiling.max_wait) == (timedelta(seconds=0.5), timedelta(seconds=3))


def test_everything_a_table_can_say_is_heard(folder: Folder) -> None:
    options = """
    cdc_timestamp_column: updated_at
    cdc_id_column: id
    target_name: fact_orders
    keys: id
    columns: {include: [id, updated_at, email, card], mask: {email: hash, card: last4}}
    filter: region = 'EU'
    default_start: 2025-01-01T00:00:00+00:00
    validation: {enable_data_quality_checks: true, max_null_percentage: 2.0}
    """
    found = settings(folder, options)
    assert (found.target_name, found.keys) == ("fact_orders", ("id",))
    assert found.include == ("id", "updated_at", "email", "card")
    assert found.masks == {"email": Mask.HASH, "card": Mask.LAST4}
    assert found.filter == "region = 'EU'"
    assert found.default_start == datetime(2025, 1, 1, tzinfo=UTC)
    assert found.validation == Rules(max_null_percentage=2.0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 5),
        ("0", 0),
        ("1.5", 1.5),
        ("5s", 5),
        ("2m", 120),
        ("250ms", 0.25),
        ("1h", 3600),
        ("'1 h'", 3600),
    ],
)
def test_durations_are_seconds_or_carry_their_unit(folder: Folder, text: str, seconds: float) -> None:
    found = settings(folder, f"cdc_id_column: id\nceiling: {{max_wait: {text}}}")
    assert found.ceiling.max_wait == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["nan", "inf", "1e99", "-0.1", "5 parsecs", "''", "s", "99999d"])
def test_what_is_no_duration_is_refused(folder: Folder, text: str) -> None:
    assert (
        "ceiling.max_wait: expected"
        in folder.table(f"cdc_id_column: i\nceiling: {{max_wait: {text}}}").error()
    )


def test_the_target_is_named_after_the_table_without_its_schema(folder: Folder) -> None:
    folder.pipeline(
        """
        pipeline: {name: shop, source: shop, target: warehouse}
        tables: {sales.orders: {cdc_id_column: id}}
        """
    )
    assert folder.open().settings_for("sales.orders").target_name == "orders"


def test_names_that_yaml_takes_for_something_else_stay_names(folder: Folder) -> None:
    folder.pipeline(
        """
        pipeline: {name: 2024, source: shop, target: warehouse}
        tables:
          on: {cdc_id_column: no}
          007: {cdc_id_column: 1.50}
          2024-01-01: {cdc_id_column: id}
        """
    )
    pipeline = folder.open("2024")
    assert pipeline.tables == ("on", "007", "2024-01-01")
    assert pipeline.settings_for("on").cursor.id == "no"
    assert pipeline.settings_for("007").cursor.id == "1.50"


def test_anchors_and_merge_keys_spare_repetition(folder: Folder) -> None:
    folder.pipeline(
        """
        pipeline: {name: shop, source: shop, target: warehouse}
        tables:
          orders: &usual {cdc_timestamp_column: t, cdc_id_column: id, write_mode: append}
          items: {<<: *usual, write_mode: merge}
          payments: *usual
        """
    )
    pipeline = folder.open()
    assert pipeline.settings_for("items").write_mode is WriteMode.MERGE
    assert pipeline.settings_for("items").strategy is Strategy.HYBRID
    assert pipeline.settings_for("payments").write_mode is WriteMode.APPEND


def test_how_tables_go_about_is_a_matter_of_the_pipeline(folder: Folder) -> None:
    assert folder.open().processing == Processing(TableOrder.SEQUENTIAL, 4, None)
    folder.table(
        "cdc_id_column: i", "processing: {strategy: parallel, max_parallel_tables: 8, timeout_minutes: 240}"
    )
    assert folder.open().processing == Processing(TableOrder.PARALLEL, 8, 240)
    folder.table("cdc_id_column: i", "processing: {max_parallel_tables: 8}")
    assert "`max_parallel_tables` needs `strategy: parallel`" in folder.error()


def test_a_table_that_is_read_whole_is_replaced_unless_it_says_append(folder: Folder) -> None:
    assert settings(folder, "cdc_strategy: full_sync").full_sync_mode is WriteMode.REPLACE
    appended = settings(folder, "{cdc_strategy: full_sync, full_sync_mode: append}")
    assert appended.full_sync_mode is WriteMode.APPEND
    assert settings(folder, "{query: SELECT 1, write_mode: append}").full_sync_mode is WriteMode.APPEND
    assert settings(folder, "cdc_strategy: full_sync", "write_mode: merge").write_mode is None


def test_full_sync_mode_is_only_about_full_sync(folder: Folder) -> None:
    found = settings(folder, "{cdc_id_column: id, write_mode: merge, full_sync_mode: replace}")
    assert found.write_mode is WriteMode.MERGE


def test_a_query_without_a_cursor_is_one_chunk(folder: Folder) -> None:
    assert settings(folder, "query: SELECT 1").one_chunk
    assert not settings(folder, "{query: SELECT 1, cdc_id_column: id}").one_chunk
    assert not settings(folder, "cdc_strategy: full_sync").one_chunk


def test_a_start_is_kept_from_tables_that_have_no_timestamp(folder: Folder) -> None:
    assert settings(folder, "cdc_id_column: id", "default_start: 2025-01-01").default_start is None


def test_a_cursor_may_be_hidden_where_rows_are_only_appended(folder: Folder) -> None:
    found = settings(folder, "{cdc_id_column: i, columns: {exclude: [i]}, write_mode: append}")
    assert found.exclude == ("i",)


def test_replace_for_a_whole_pipeline_is_refused_once(folder: Folder) -> None:
    folder.pipeline(
        """
        pipeline: {name: shop, source: shop, target: warehouse, write_mode: replace}
        tables: {a: {cdc_id_column: i}, b: {cdc_id_column: i}, c: {cdc_strategy: full_sync}}
        """
    )
    assert folder.error().startswith(f"{SHOP}:1:69: pipeline.write_mode: replace would keep only")


@pytest.mark.parametrize("word", ["null", '"null"', "~"])
def test_an_unquoted_null_is_a_policy_where_policies_are_named(folder: Folder, word: str) -> None:
    found = settings(
        folder, f"{{cdc_id_column: id, on_lossy: text, columns: {{on_lossy: {{born: {word}}}}}}}"
    )
    assert (found.lossy.of("born"), found.lossy.of("died")) == (OnLossy.NULL, OnLossy.TEXT)
    found = settings(folder, f"{{cdc_id_column: id, on_lossy: {word}}}", "on_lossy: text")
    assert found.lossy.of("born") is OnLossy.NULL


@pytest.mark.parametrize("decided", ["text", "null"])
def test_what_rows_are_found_by_is_not_decided_on(folder: Folder, decided: str) -> None:
    folder.table(f"{{cdc_id_column: id, columns: {{on_lossy: {{id: {decided}}}}}}}")
    assert "column `id` finds and merges rows" in folder.error()

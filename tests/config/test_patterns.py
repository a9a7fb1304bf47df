from __future__ import annotations

import pytest

from tests.config.conftest import Folder
from tidegate.config.pipelines import Pipeline
from tidegate.config.spelling import matches
from tidegate.core.errors import ConfigError, UsageError

AVAILABLE = [
    "customers",
    "orders_2024",
    "orders_2025",
    "orders_old",
    "sales.items",
    "sales.odd.name",
    "hr.people",
]


@pytest.fixture
def pipeline(folder: Folder) -> Pipeline:
    folder.pipeline(
        """
        pipeline: {name: shop, source: shop, target: warehouse}
        tables:
          payments: {cdc_id_column: payment_id}
          orders_old: {cdc_strategy: full_sync}
          orders_*: {cdc_id_column: order_id}
          sales.*: {cdc_id_column: id}
        """
    )
    return folder.open()


@pytest.mark.parametrize(
    ("pattern", "table", "expected"),
    [
        ("orders", "orders", True),
        ("orders", "Orders", False),
        ("orders_*", "orders_2024", True),
        ("orders_*", "sales.orders_2024", False),
        ("*", "orders", True),
        ("*", "sales.orders", False),
        ("*.*", "sales.orders", True),
        ("*.*", "orders", False),
        ("sales.*", "sales.orders", True),
        ("sales.*", "sales.odd.name", True),
        ("sales.*", "salesorders", False),
        ("orders_20[12]?", "orders_2024", True),
        ("orders_20[!2]?", "orders_2024", False),
        ("data[1]", "data[1]", True),
    ],
)
def test_a_star_stays_within_its_schema(pattern: str, table: str, expected: bool) -> None:  # noqa: FBT001
    assert matches(pattern, table) is expected


def test_patterns_are_expanded_in_the_order_of_the_file(pipeline: Pipeline) -> None:
    assert pipeline.tables == ("payments", "orders_old", "orders_*", "sales.*")
    assert pipeline.has_patterns
    assert pipeline.expand(AVAILABLE) == [
        "payments", "orders_old", "orders_2024", "orders_2025", "sales.items", "sales.odd.name",
    ]  # fmt: skip


def test_a_name_goes_before_a_pattern(pipeline: Pipeline) -> None:
    assert not pipeline.settings_for("orders_old").incremental
    assert pipeline.settings_for("orders_2024").cursor.id == "order_id"
    assert pipeline.settings_for("orders_2024").target_name == "orders_2024"


def test_the_first_of_two_patterns_wins(folder: Folder) -> None:
    folder.pipeline(
        """
        pipeline: {name: shop, source: shop, target: warehouse}
        tables:
          a*: {cdc_id_column: first}
          "*b": {cdc_id_column: second}
        """
    )
    pipeline = folder.open()
    assert pipeline.expand(["ab", "b", "a"]) == ["ab", "a", "b"]
    assert pipeline.settings_for("ab").cursor.id == "first"


def test_a_table_whose_name_looks_like_a_pattern_is_itself(folder: Folder) -> None:
    folder.pipeline(
        """
        pipeline: {name: shop, source: shop, target: warehouse}
        tables: {"data[1]": {cdc_id_column: id}}
        """
    )
    pipeline = folder.open()
    assert pipeline.expand(["data[1]", "data1"]) == ["data[1]"]
    assert pipeline.settings_for("data[1]").table == "data[1]"


def test_the_tables_asked_for_are_kept(pipeline: Pipeline) -> None:
    assert pipeline.expand(AVAILABLE, ["orders_2025", "payments"]) == ["orders_2025", "payments"]
    assert pipeline.expand(AVAILABLE, ["orders_20*", "orders_2024"]) == ["orders_2024", "orders_2025"]


def test_a_table_that_a_pattern_stands_for_can_be_asked_for_though_the_source_does_not_list_it(
    pipeline: Pipeline,
) -> None:
    assert pipeline.expand(AVAILABLE, ["orders_2026"]) == ["orders_2026"]


def test_a_table_that_the_pipeline_does_not_have_is_answered_with_the_nearest(pipeline: Pipeline) -> None:
    with pytest.raises(UsageError) as caught:
        pipeline.expand(AVAILABLE, ["payment"])
    assert str(caught.value) == (
        "config/pipelines/shop.yml: pipeline `shop` has no table `payment`: did you mean `payments`? "
        "(it has `payments`, `orders_old`, `orders_*` and `sales.*`)"
    )
    with pytest.raises(UsageError, match="no table of pipeline `shop` matches `x_"):
        pipeline.expand(AVAILABLE, ["x_*"])


def test_patterns_that_match_nothing_are_known(pipeline: Pipeline) -> None:
    assert pipeline.unmatched(["orders_1"]) == ["sales.*"]
    assert pipeline.expand(["orders_1"]) == ["payments", "orders_old", "orders_1"]


@pytest.mark.parametrize("option", ["target_name: x", "query: SELECT 1"])
def test_what_only_one_table_can_have_is_refused_for_a_pattern(folder: Folder, option: str) -> None:
    folder.pipeline(
        "pipeline: {name: shop, source: shop, target: warehouse}\n"
        f"tables: {{a*: {{cdc_strategy: full_sync, {option}}}}}"
    )
    assert "`a*` can stand for several tables, and they cannot all have this" in folder.error()


def test_two_tables_cannot_go_into_one(folder: Folder) -> None:
    folder.pipeline(
        """
        pipeline: {name: shop, source: shop, target: warehouse}
        tables:
          orders: {cdc_id_column: id}
          sales.Orders: {cdc_id_column: id}
        """
    )
    assert folder.error() == (
        'config/pipelines/shop.yml:4:3: tables."sales.Orders": `sales.Orders` goes into the same target '
        "table as `orders`; give it another `target_name`"
    )


def test_two_tables_that_patterns_find_cannot_go_into_one(folder: Folder) -> None:
    folder.pipeline(
        """
        pipeline: {name: shop, source: shop, target: warehouse}
        tables:
          "*": {cdc_id_column: id}
          "*.*": {cdc_id_column: id}
        """
    )
    with pytest.raises(ConfigError, match=r"`sales\.items` goes into the same target table as `items`"):
        folder.open().expand(["items", "sales.items"])

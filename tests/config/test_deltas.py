"""Pipelines of kind delta: what their files may say, and what a mistake in one looks like."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.config.conftest import CONNECTIONS, Folder
from tidegate.config.upstreams import Deletes, DeltaMode, FirstRun, WithoutFeed
from tidegate.core.errors import TidegateError

HEAD = "pipeline: {name: gold, kind: delta, target: lake}\n"
LAKE = "connections: {targets: {lake: {type: delta, path: ./gold}, warehouse: {type: duckdb, path: w.db}}}\n"


@pytest.fixture
def lake(folder: Folder) -> Folder:
    (folder.root / "config/pipelines/shop.yml").unlink()
    return folder.connections(LAKE)


def problem(folder: Folder, pipeline: str) -> str:
    folder.pipeline(pipeline, "gold.yml")
    with pytest.raises(TidegateError) as caught:
        folder.load().delta_pipeline("gold")
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_an_upstream_goes_before_the_pipeline_and_the_pipeline_before_what_is_built_in(lake: Folder) -> None:
    lake.pipeline(
        HEAD
        + "deletes: soft\n"
        + "upstreams:\n"
        + "  silver.orders: {path: ./silver/orders, keys: id, deletes: hard, first_run: full_history}\n"
        + "  silver.lines: {path: s3://bucket/lines, keys: [order, line], target_name: order_lines}\n"
        + "  clicks: {table: web.silver.clicks, write_mode: history, without_feed: refuse}\n",
        "gold.yml",
    )
    project = lake.load()
    project.validate()
    orders, lines, clicks = project.delta_pipeline("gold").upstreams
    assert (orders.place, orders.target_name) == (str(lake.root / "silver/orders"), "orders")
    assert (orders.keys, orders.deletes, orders.first_run) == (("id",), Deletes.HARD, FirstRun.FULL_HISTORY)
    assert (lines.place, lines.target_name, lines.deletes) == (
        "s3://bucket/lines",
        "order_lines",
        Deletes.SOFT,
    )
    assert (lines.write_mode, lines.first_run) == (DeltaMode.MERGE, FirstRun.SNAPSHOT)
    assert (clicks.table, clicks.write_mode, clicks.without_feed) == (
        "web.silver.clicks",
        DeltaMode.HISTORY,
        WithoutFeed.REFUSE,
    )
    assert project.describe()["pipelines"]["gold"]["upstreams"]["clicks"]["table"] == "web.silver.clicks"


def test_a_first_run_may_begin_at_a_version_or_a_moment(lake: Folder) -> None:
    lake.pipeline(
        HEAD
        + "upstreams:\n"
        + "  a: {path: a, keys: id, first_run: {version: 3}}\n"
        + "  b: {path: b, keys: id, first_run: {timestamp: '2025-01-01 00:00:00+00:00'}}\n",
        "gold.yml",
    )
    a, b = lake.load().delta_pipeline("gold").upstreams
    assert (a.first_run, b.first_run) == (3, datetime(2025, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("pipeline", "said"),
    [
        ("upstreams: {a: {path: a}}", "`keys` is missing: changes are merged by them"),
        ("upstreams: {a: {path: a, write_mode: history}}", "versions are compared by them"),
        ("upstreams: {a: {keys: id}}", "give `path`, or `table`"),
        ("upstreams: {a: {path: a, keys: id, first_run: later}}", "expected `snapshot`, `full_history`"),
        ("upstreams: {a: {path: a, keys: id, first_run: {}}}", "give `version` or `timestamp`"),
        ("upstreams: {a: {path: a, keys: id, delets: soft}}", "did you mean `deletes`?"),
        ("upstreams: {}", "there is no upstream in it"),
        ("upstreams: {from: './a/*', schema: main.silver, keys: id}", "give `from`, or `schema`"),
        ("upstreams: {x.a: {path: a, keys: id}, y.a: {path: b, keys: id}}", "the same target table as `x.a`"),
        ("upstreams: {a: {path: a, keys: id}}\ntargets: {b: {}}", "there is no `transform`"),
        ("upstreams: {a: {path: a, keys: id}}\ntransform: build", "expected a module and a function"),
        ("upstreams: {a: {path: a, keys: id}}\nalign: version", "expected `commit_timestamp`"),
    ],
)
def test_a_mistake_is_named_with_its_place(lake: Folder, pipeline: str, said: str) -> None:
    message = problem(lake, HEAD + pipeline)
    assert said in message
    assert message.startswith("config/pipelines/gold.yml:")


def test_the_target_has_to_hold_delta_tables(lake: Folder) -> None:
    message = problem(lake, HEAD.replace("lake", "warehouse") + "upstreams: {a: {path: a, keys: id}}")
    assert "`warehouse` is of type duckdb" in message


def test_each_kind_of_pipeline_has_its_own_commands(folder: Folder) -> None:
    folder.connections(CONNECTIONS + "    lake: {type: delta, path: ./gold}\n")
    folder.pipeline(HEAD + "upstreams: {a: {path: a, keys: id}}\n", "gold.yml")
    project = folder.load()
    assert (project.syncs, project.deltas) == (("shop",), ("gold",))
    with pytest.raises(TidegateError, match="`gold` is a pipeline of kind delta"):
        project.pipeline("gold")
    with pytest.raises(TidegateError, match="`shop` is no pipeline of kind delta"):
        project.delta_pipeline("shop")

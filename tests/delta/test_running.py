"""What is in the target once plans were processed: the upstream as of the recorded version, nothing twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from pyspark.errors import PySparkException

from tests.delta.conftest import PIPELINE, Lake, order
from tests.spark_servers import SparkServer
from tidegate.core.errors import ConnectError, SourceError
from tidegate.delta.changes import each_alone
from tidegate.delta.lake import Lake as TargetLake
from tidegate.delta.plan import Plan
from tidegate.delta.running import Processing, processing_of
from tidegate.spark.catalog import SparkCatalog
from tidegate.spark.delta import demand_delta
from tidegate.spark.session import LazySession, SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Gold(Lake):
    """The same project, with Spark to process its plans."""

    spark: Any = None

    def run(self, **options: Any) -> Plan:
        with self.plans() as plans:
            return processing_of(plans, LazySession(SparkSettings(), self.spark)).run(**options)

    def completed(self) -> Plan:
        plan = self.run()
        assert plan.status in ("COMPLETED", "SKIPPED"), plan
        return plan

    def rows(self, table: str = "orders", *columns: str) -> list[dict[str, Any]]:
        found = DeltaTable(self.root / "gold" / table).to_pyarrow_table(columns=list(columns) or None)
        return sorted(found.to_pylist(), key=lambda row: str(sorted(row.items())))

    def told(self, table: str = "orders") -> list[dict[str, Any]]:
        """A history, by keys and what happened to them."""
        return sorted(self.rows(table), key=lambda row: (row["id"], row["_tidegate_change"]))

    def upstream(self, name: str = "orders", version: int | None = None) -> list[dict[str, Any]]:
        """The rows of an upstream, as of a version, or of the one that is recorded."""
        recorded = self.plans().load_checkpoints()
        version = next(iter(recorded.values())) if version is None else version
        found = DeltaTable(self.place(name), version=version).to_pyarrow_table()
        return sorted(found.to_pylist(), key=lambda row: str(sorted(row.items())))

    def agree(self) -> None:
        assert self.rows() == self.upstream()

    def sql(self, statement: str, name: str = "orders") -> None:
        self.spark.sql(statement.format(table=f"delta.`{self.place(name)}`"))

    def change(self) -> None:
        """Insert, update, delete, insert after a delete, and an update of the key itself."""
        table = self.table()
        self.append([order(10), order(11), order(12)])
        table = self.table()
        table.update(updates={"state": "'paid'"}, predicate="id IN (1, 10)")
        table.delete("id IN (2, 11)")
        self.append([order(2, "again")])
        self.table().update(updates={"id": "id + 100"}, predicate="id = 3")


@pytest.fixture
def gold(tmp_path: Path, spark: SparkSession) -> Gold:
    lake = Gold(tmp_path, spark=spark)
    lake.configure()
    return lake


def test_the_net_effect_of_many_versions_reaches_the_target(gold: Gold) -> None:
    gold.append([order(number) for number in range(1, 6)])
    first = gold.completed()
    assert first.upstreams[0].records_processed == 5
    gold.agree()
    gold.change()
    done = gold.completed()
    gold.agree()
    assert done.upstreams[0].start_version == 1
    assert gold.completed().status == "SKIPPED"
    commit = DeltaTable(gold.root / "gold/orders").history(1)[0]
    assert done.run_id is not None
    assert done.run_id in commit["userMetadata"]


def test_every_change_becomes_a_row_where_history_is_kept(gold: Gold) -> None:
    gold.configure(PIPELINE + "write_mode: history\nfirst_run: full_history\n")
    gold.append([order(1)])
    gold.table().update(updates={"state": "'paid'"}, predicate="id = 1")
    gold.completed()
    gold.table().delete("id = 1")
    gold.completed()
    seen = gold.rows("orders", "id", "state", "_tidegate_change", "_tidegate_version")
    assert sorted((row["_tidegate_version"], row["_tidegate_change"], row["state"]) for row in seen) == [
        (0, "insert", "new"),
        (1, "update_postimage", "paid"),
        (1, "update_preimage", "new"),
        (2, "delete", "paid"),
    ]
    moments = DeltaTable(gold.root / "gold/orders").to_pyarrow_table(columns=["_tidegate_committed_at"])
    assert moments.column(0).null_count == 0


def test_deleted_rows_stay_where_deletes_are_soft(gold: Gold) -> None:
    gold.configure(PIPELINE + "deletes: soft\n")
    gold.append([order(number) for number in range(1, 4)])
    gold.completed()
    gold.table().delete("id IN (1, 2)")
    gold.completed()
    gold.append([order(2, "again")])
    gold.completed()
    found = {row["id"]: (row["state"], row["_deleted_at"] is not None) for row in gold.rows()}
    assert found == {1: ("new", True), 2: ("again", False), 3: ("new", False)}


def test_a_table_without_a_feed_is_compared_version_by_version(gold: Gold) -> None:
    gold.append([order(number) for number in range(1, 6)], feed=False)
    gold.completed()
    gold.change()
    gold.completed()
    gold.agree()


def test_keys_that_do_not_tell_rows_apart_fail_the_plan_and_leave_the_target(gold: Gold) -> None:
    gold.append([order(1), order(1, "other")])
    plan = gold.run()
    assert plan.status == "FAILED"
    assert plan.upstreams[0].error_message == "the keys do not tell rows apart: id=1"
    assert not DeltaTable.is_deltatable(str(gold.root / "gold/orders"))


def test_a_table_that_was_made_and_not_filled_is_filled_by_the_next_plan(gold: Gold) -> None:
    gold.configure(PIPELINE + "deletes: soft\n")
    gold.append([order(1), order(1, "other")])
    assert gold.run().status == "FAILED"
    assert gold.rows() == []
    gold.table().delete("state = 'other'")
    gold.plans().prepare(rebaseline=["silver.orders"])
    gold.completed()
    assert gold.rows("orders", "id", "state") == [order(1)]


def test_what_a_target_would_change_silently_is_not_written_into_it(gold: Gold) -> None:
    gold.configure(PIPELINE + "deletes: soft\non_schema_change: rebaseline\n")
    gold.append([{"id": 1, "price": 3}])
    gold.completed()
    gold.append([{"id": 1, "price": 1.5}], mode="overwrite", schema_mode="overwrite")
    failed = gold.run().upstreams[0]
    assert '`price` is "double", and "long" there' in str(failed.error_message)
    assert gold.rows("orders", "id", "price") == [{"id": 1, "price": 3}]


def test_columns_that_come_and_go_are_followed(gold: Gold) -> None:
    gold.append([order(1), order(2)])
    gold.completed()
    gold.append([{**order(3), "price": 3}], schema_mode="merge")
    gold.table().update(updates={"state": "'paid'"}, predicate="id = 1")
    gold.completed()
    gold.agree()
    gold.append([{"id": 1, "price": 5}, {"id": 4, "price": 6}], mode="overwrite", schema_mode="overwrite")
    gold.completed()
    found = {(row["id"], row["price"], row["state"]) for row in gold.rows()}
    assert found == {(1, 5, None), (4, 6, None)}


def test_a_rebaseline_makes_the_target_anew(gold: Gold) -> None:
    gold.configure(PIPELINE + "on_schema_change: rebaseline\n")
    gold.append([order(1), order(2)])
    gold.completed()
    text = pa.table({"id": ["a", "b"], "state": ["x", "y"]})
    write_deltalake(gold.place(), text, mode="overwrite", schema_mode="overwrite")
    gold.completed()
    gold.agree()


def test_versions_before_a_change_of_type_are_brought_and_the_rest_waits(gold: Gold) -> None:
    gold.append([order(1)])
    gold.completed()
    gold.append([order(2)])
    gold.table().update(updates={"state": "'paid'"}, predicate="id = 1")
    text = pa.table({"id": ["a"], "state": ["x"]})
    write_deltalake(gold.place(), text, mode="overwrite", schema_mode="overwrite")
    assert gold.completed().upstreams[0].end_version == 2
    gold.agree()
    with pytest.raises(SourceError, match='`id` was "long" and is "string"'):
        gold.run()


def test_files_that_vacuum_takes_after_planning_fail_the_plan(gold: Gold) -> None:
    gold.append([order(1)])
    gold.completed()
    gold.append([order(2)])
    gold.plans().prepare()
    gold.append([order(3)], mode="overwrite")
    gold.table().vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    plan = gold.run()
    assert plan.status == "FAILED"
    said = str(plan.upstreams[0].error_message)
    assert "VACUUM has taken them" in said
    assert "An error occurred while calling" not in said


def test_a_table_of_somebody_else_is_not_replaced(gold: Gold) -> None:
    gold.append([order(1)])
    write_deltalake(gold.root / "gold/orders", pa.table({"id": [7]}))
    plan = gold.run()
    assert "there is a table already" in str(plan.upstreams[0].error_message)
    assert gold.rows() == [{"id": 7}]
    stamp = CommitProperties(custom_metadata={"userMetadata": '{"tidegate": "tidegate:other/orders"}'})
    empty = pa.table({"id": [7]}).slice(0, 0)
    write_deltalake(gold.root / "gold/orders", empty, mode="overwrite", commit_properties=stamp)
    assert "there is a table already" in str(gold.run().upstreams[0].error_message)


def test_a_table_of_a_catalog_is_found_by_its_name(gold: Gold) -> None:
    gold.configure(PIPELINE.replace("path: ./silver/orders", "table: default.followed_orders"))
    gold.append([order(1)])
    gold.spark.sql(f"CREATE TABLE default.followed_orders USING delta LOCATION '{gold.place()}'")
    session = LazySession(SparkSettings(), gold.spark)
    try:
        with gold.plans(catalog=SparkCatalog(session)) as plans:
            assert processing_of(plans, session).run().status == "COMPLETED"
    finally:
        gold.spark.sql("DROP TABLE default.followed_orders")
    gold.agree()


def test_the_tables_of_a_schema_are_found(gold: Gold) -> None:
    gold.configure(
        "pipeline: {name: gold, kind: delta, state: lake, target: lake}\n"
        "upstreams: {schema: spark_catalog.silver, exclude: ['tmp_*'], keys: [id]}\n"
    )
    session = LazySession(SparkSettings(), gold.spark)
    gold.spark.sql("CREATE SCHEMA silver")
    try:
        for name in ("orders", "tmp_orders"):
            gold.append([order(1)], name)
            gold.spark.sql(f"CREATE TABLE silver.{name} USING delta LOCATION '{gold.place(name)}'")
        gold.spark.sql("CREATE VIEW silver.seen AS SELECT * FROM silver.orders")
        gold.spark.sql("CREATE TABLE silver.notes USING parquet AS SELECT 1 AS id")
        with gold.plans(catalog=SparkCatalog(session)) as plans:
            assert [item.name for item in plans.prepare().work] == ["orders"]
            assert plans.upstreams()["orders"].place == str(gold.place())
            assert processing_of(plans, session).run().status == "COMPLETED"
    finally:
        gold.spark.sql("DROP SCHEMA silver CASCADE")
    assert gold.plans().last_plan() is not None  # and nobody asks the catalog to look back
    gold.agree()


def test_plans_are_processed_on_a_spark_connect_server(tmp_path: Path, spark_connect: SparkServer) -> None:
    gold = Gold(tmp_path)
    gold.configure()
    gold.append([order(number) for number in range(1, 6)])
    session = LazySession(SparkSettings(remote=spark_connect.spark["remote"]))
    try:
        for _ in range(2):
            with gold.plans() as plans:
                plan = processing_of(plans, session).run()
            assert plan.status == "COMPLETED", plan
            gold.agree()
            gold.change()
    finally:
        session.stop()


TWO = """
pipeline: {name: gold, kind: delta, state: lake, target: lake}
upstreams: {from: ./silver/*, keys: [id]}
"""


def test_marks_move_together_or_not_at_all_where_that_is_asked_for(gold: Gold) -> None:
    gold.configure(TWO + "all_or_nothing: true\n")
    gold.append([order(1)])
    gold.append([order(1), order(1)], "twins")
    assert gold.run().status == "FAILED"
    assert gold.plans().load_checkpoints() == {"orders": None, "twins": None}
    gold.table("twins").delete("true")
    gold.append([order(1)], "twins")
    assert gold.run().status == "FAILED"  # the plan is frozen: its version still has them
    gold.plans().prepare(rebaseline=["twins"])
    gold.completed()
    assert set(gold.plans().load_checkpoints().values()) != {None}
    assert len(DeltaTable(gold.root / "gold/orders").history()) == 1


class Meeting:
    """A lake that writes for nobody until all have come."""

    def __init__(self, lake: TargetLake, parties: int) -> None:
        self._lake = lake
        self._barrier = Barrier(parties, timeout=600)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lake, name)

    def apply(self, *args: Any) -> None:
        self._barrier.wait()
        self._lake.apply(*args)


def test_upstreams_are_processed_at_the_same_time(gold: Gold) -> None:
    gold.configure(TWO + "max_parallel: 3\n")
    for name in ("orders", "customers", "payments"):
        gold.append([order(1)], name)
    lake = Meeting(TargetLake(str(gold.root / "gold")), 3)
    with gold.plans() as plans:
        session = LazySession(SparkSettings(), gold.spark)
        done = Processing(plans, session, lake).run()  # type: ignore[arg-type]
    assert done.status == "COMPLETED", done


TRANSFORM = """
def build(changes):
    orders = changes["orders"]
    return {"states": orders.groupBy("state").count(), "copy": orders}
"""


def test_a_transformation_decides_what_is_written(gold: Gold) -> None:
    gold.configure(
        TWO + "transform: shaping_gold:build\ntargets: {copy: {keys: [id]}, states: {write_mode: append}}\n"
    )
    (gold.root / "shaping_gold.py").write_text(TRANSFORM)
    gold.append([order(1), order(2, "paid")])
    gold.completed()
    gold.table().delete("id = 1")
    gold.completed()
    assert [row["id"] for row in gold.rows("copy")] == [2]
    assert sorted((row["state"], row["count"]) for row in gold.rows("states")) == [
        ("new", 1),
        ("new", 1),
        ("paid", 1),
    ]


def test_two_rows_of_a_transformation_under_one_key_are_not_both_inserted(gold: Gold) -> None:
    gold.configure(TWO + "transform: twofold_gold:build\ntargets: {all: {keys: [id]}}\n")
    (gold.root / "twofold_gold.py").write_text(
        "def build(changes):\n    orders = changes['orders']\n    return {'all': orders.unionAll(orders)}\n"
    )
    gold.append([order(1)])
    assert gold.run().upstreams[0].error_message == "the keys do not tell rows apart: id=1"
    assert gold.rows("all") == []


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ({1: ["upsert", "delete"], 2: [None], 3: ["delete"]}, {1: "upsert", 2: "upsert", 3: "delete"}),
        (
            {1: ["update_preimage"], 2: ["update_postimage"], 3: ["insert"]},
            {1: "delete", 2: "upsert", 3: "upsert"},
        ),
        ({1: ["upsert", None]}, None),
        ({1: ["insert", "delete"]}, None),
        ({1: ["update_preimage", "update_postimage"]}, None),
    ],
)
def test_each_key_is_merged_once(
    spark: SparkSession, told: dict[int, list[str | None]], kept: dict[int, str] | None
) -> None:
    rows = [(key, kind) for key, kinds in told.items() for kind in kinds]
    alone = each_alone(spark.createDataFrame(rows, "id bigint, _tidegate_change string"), ("id",))
    if kept is None:
        with pytest.raises(PySparkException, match="do not tell rows apart: id=1"):
            alone.collect()
    else:
        assert {row.id: row._tidegate_change for row in alone.collect()} == kept  # noqa: SLF001


class Unset:
    """A session whose settings say nothing."""

    def __init__(self, sql: Callable[[str], Any]) -> None:
        self.sql = sql
        self.conf = self

    def get(self, _: str, default: str) -> str:
        return default


def test_a_session_that_delta_is_built_into_is_known_by_what_it_understands(gold: Gold) -> None:
    demand_delta(Unset(gold.spark.sql))  # type: ignore[arg-type]
    with pytest.raises(ConnectError, match="does not know Delta tables"):
        demand_delta(Unset(lambda _: gold.spark.sql("no statement")))  # type: ignore[arg-type]

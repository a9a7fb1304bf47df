"""Killed at any step, any number of times, a plain re-run loses nothing and doubles nothing."""

from __future__ import annotations

import random

import pytest

from tests.delta.conftest import PIPELINE, order
from tests.delta.test_running import TWO, Gold, gold
from tests.delta.victim import Step, run_until, run_until_rows_are_written
from tests.spark_servers import SparkServer
from tidegate.testing.faults import Moment

__all__ = ["gold"]

HISTORY = TWO + "all_or_nothing: true\nwrite_mode: history\nfirst_run: full_history\n"
TRANSFORM = """
def build(changes):
    return {name: changes[name].drop("state") for name in sorted(changes)}
"""
BEFORE, AFTER = Moment.BEFORE, Moment.AFTER

# Each of these takes up what the one before has left, so the last ones find work for one upstream alone.
PLANNING = [
    Step("write", "planned", 1, BEFORE),
    Step("write", "planned", 1, AFTER),
    Step("write", "planned", 2, AFTER),
    Step("write", "started", 1, AFTER),
]
COMPLETING = [
    Step("write", "completed", 1, BEFORE),
    Step("write", "completed", 1, AFTER),
    Step("write", "completed", 1, AFTER),
]
UPSTREAM_BY_UPSTREAM = [*PLANNING, Step("apply", moment=BEFORE), Step("apply"), Step("apply"), *COMPLETING]
TRANSFORMED = [Step("write", moment=BEFORE), Step("write"), Step("write"), COMPLETING[1]]


def remote(server: SparkServer) -> str:
    return str(server.spark["remote"])


def told(gold: Gold, table: str) -> list[tuple[int, int]]:
    rows = gold.rows(table, "_tidegate_version", "id")
    return sorted((row["_tidegate_version"], row["id"]) for row in rows)


def test_a_run_that_is_killed_at_every_step_in_turn(gold: Gold, spark_connect: SparkServer) -> None:
    gold.configure(HISTORY + "max_parallel: 1\n")
    for name in ("orders", "customers"):
        for number in range(2):
            gold.append([order(number)], name)
    for step in UPSTREAM_BY_UPSTREAM:
        assert run_until(gold.root, remote(spark_connect), step), step
    gold.completed()
    assert told(gold, "orders") == told(gold, "customers") == [(0, 0), (1, 1)]
    assert gold.plans().load_checkpoints() == {"customers": 1, "orders": 1}


def test_what_spark_still_commits_for_a_run_that_was_killed_is_there_once(
    gold: Gold, spark_connect: SparkServer
) -> None:
    gold.configure(PIPELINE + "write_mode: history\nfirst_run: full_history\n")
    for number in range(3):
        gold.append([order(number)])
    assert run_until_rows_are_written(gold.root, remote(spark_connect), "orders")
    plans = (gold.run() for _ in range(10))  # of two that commit the same plan, one fails
    assert next(plan.status for plan in plans if plan.status != "FAILED") == "COMPLETED"
    assert told(gold, "orders") == [(0, 0), (1, 1), (2, 2)]


def test_a_run_that_is_killed_between_two_targets(gold: Gold, spark_connect: SparkServer) -> None:
    gold.configure(
        TWO
        + "transform: killed_gold:build\ntargets: {orders: {write_mode: append}, customers: {keys: [id]}}\n"
    )
    (gold.root / "killed_gold.py").write_text(TRANSFORM)
    for name in ("orders", "customers"):
        gold.append([order(1), order(2)], name)
    for step in TRANSFORMED:
        assert run_until(gold.root, remote(spark_connect), step), step
    gold.completed()
    assert [row["id"] for row in gold.rows("orders")] == [1, 2]
    assert [row["id"] for row in gold.rows("customers")] == [1, 2]


def test_a_run_that_is_killed_between_making_a_table_and_filling_it(
    gold: Gold, spark_connect: SparkServer
) -> None:
    gold.configure(PIPELINE + "deletes: soft\n")
    gold.append([order(1), order(2)])
    for step in (Step("_ensure"), Step("_merge")):
        assert run_until(gold.root, remote(spark_connect), step), step
    gold.completed()
    assert gold.rows("orders", "id") == [{"id": 1}, {"id": 2}]


@pytest.mark.parametrize("seed", [7])
def test_runs_that_are_killed_anywhere_again_and_again(
    gold: Gold, spark_connect: SparkServer, seed: int
) -> None:
    chance = random.Random(seed)
    steps = [*UPSTREAM_BY_UPSTREAM, Step("write", "planned", moment=AFTER)]
    gold.append([order(number) for number in range(6)])
    for _ in range(3):
        gold.append([order(100 + chance.randrange(10_000))])
        gold.table().update(
            updates={"state": f"'{chance.random()}'"}, predicate=f"id = {chance.randrange(6)}"
        )
        gold.table().delete(f"id = {chance.randrange(6)}")
        for _ in range(chance.randrange(1, 4)):
            run_until(gold.root, remote(spark_connect), chance.choice(steps))
    gold.completed()
    gold.agree()

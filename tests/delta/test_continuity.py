"""A plan goes on where the last one ended, in the same tables, or says why it does not."""

from __future__ import annotations

import shutil
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake

from tests.delta.conftest import PIPELINE, order
from tests.delta.test_running import TWO, Gold, gold
from tidegate.cli.root import tidegate

__all__ = ["gold"]

HISTORY = PIPELINE + "write_mode: history\nfirst_run: full_history\n"


def error(gold: Gold) -> str:
    plan = gold.run()
    assert plan.status == "FAILED", plan
    return str(next(item.error_message for item in plan.upstreams if item.error_message))


def ids(gold: Gold, table: str = "orders") -> list[Any]:
    return sorted(row["id"] for row in gold.rows(table, "id"))


@pytest.mark.parametrize("lost", ["table", "name"])
def test_changes_are_not_brought_into_a_table_that_lacks_what_was_before(gold: Gold, lost: str) -> None:
    gold.append([order(1)])
    gold.completed()
    gold.append([order(2)])
    if lost == "table":
        shutil.rmtree(gold.root / "gold/orders")
    else:
        gold.configure(PIPELINE.replace("keys: [id]", "keys: [id], target_name: renamed"))
    said = error(gold)
    assert "the table is not there, and versions up to 0 were brought into it" in said
    assert "--rebaseline silver.orders" in said
    gold.plans().prepare(rebaseline=["silver.orders"])
    gold.completed()
    assert ids(gold, "orders" if lost == "table" else "renamed") == [1, 2]


@pytest.mark.parametrize("first_run", ["full_history", "snapshot"])
def test_a_state_that_was_lost_does_not_append_what_is_there(gold: Gold, first_run: str) -> None:
    gold.configure(HISTORY.replace("full_history", first_run))
    for number in (1, 2):
        gold.append([order(number)])
        gold.completed()
    shutil.rmtree(gold.root / "state")
    gold.append([order(3)])
    assert "up to 1 already, by a run that was never recorded as done" in error(gold)
    assert ids(gold) == [1, 2]
    words = ["watermark", "set", "-p", "gold", "-t", "silver.orders", "--id", "1"]
    done = CliRunner().invoke(tidegate, ["--project", str(gold.root), *words])
    assert done.exit_code == 0, done.output
    gold.completed()
    assert ids(gold) == [1, 2, 3]


def test_a_state_of_an_older_day_does_not_append_what_is_there(gold: Gold) -> None:
    gold.configure(
        TWO + "transform: copying_gold:build\ntargets: {all: {write_mode: append}}\nfirst_run: full_history\n"
    )
    (gold.root / "copying_gold.py").write_text("def build(changes):\n    return {'all': changes['orders']}\n")
    gold.append([order(1)])
    gold.completed()
    shutil.copytree(gold.root / "state", gold.root / "saved")
    gold.append([order(2)])
    gold.completed()
    shutil.rmtree(gold.root / "state")
    shutil.move(gold.root / "saved", gold.root / "state")
    gold.append([order(3)])
    assert "versions of `orders` up to 1 already" in error(gold)
    assert ids(gold, "all") == [1, 2]


def test_what_is_read_again_on_purpose_is_appended_again(gold: Gold) -> None:
    gold.configure(HISTORY)
    gold.append([order(1)])
    gold.completed()
    gold.plans().prepare(rebaseline=["silver.orders"])
    gold.completed()
    gold.plans().move({"silver.orders": None}, reason="once more")
    gold.completed()
    assert ids(gold) == [1, 1, 1]


def test_a_plan_is_not_read_from_another_table_that_lies_at_its_place(gold: Gold) -> None:
    for number in range(3):
        gold.append([order(number)])
    gold.completed()
    gold.append([order(3)])
    gold.plans().prepare()
    shutil.rmtree(gold.place())
    for number in range(10, 15):
        gold.append([order(number)])
    assert "made anew since it was planned" in error(gold)
    assert ids(gold) == [0, 1, 2]


def test_rows_that_share_a_key_in_different_versions_are_an_error(gold: Gold) -> None:
    gold.append([order(1)])
    gold.completed()
    gold.append([order(2, "one")])
    gold.append([order(2, "other")])
    gold.table().delete("state = 'other'")
    assert error(gold) == "the keys do not tell rows apart: id=2"
    assert ids(gold) == [1]


@pytest.mark.parametrize(("name", "more"), [("_Tidegate_Version", ""), ("_deleted_at", "deletes: soft\n")])
def test_columns_that_we_tell_changes_by_are_refused_in_an_upstream(gold: Gold, name: str, more: str) -> None:
    gold.configure(PIPELINE + more)
    gold.append([{**order(1), name: 1}])
    assert f"columns of its own that are called {name.casefold()}" in error(gold)


def test_rows_are_deleted_softly_even_if_no_commit_says_when(gold: Gold) -> None:
    gold.configure(PIPELINE + "deletes: soft\n")
    gold.append([order(1), order(2)], feed=False)
    gold.completed()
    gold.table().delete("id = 1")
    log = gold.place() / "_delta_log" / f"{1:020}.json"
    lines = [line for line in log.read_text().splitlines() if "commitInfo" not in line]
    log.write_text("\n".join(lines) + "\n")
    gold.completed()
    assert {row["id"]: row["_deleted_at"] is not None for row in gold.rows()} == {1: True, 2: False}


def test_an_upstream_that_is_named_no_more_is_told_in_words(gold: Gold) -> None:
    gold.configure(TWO)
    for name in ("orders", "customers"):
        gold.append([order(1)], name)
    gold.plans().prepare()
    shutil.rmtree(gold.place("customers"))
    assert "no upstream of the pipeline any more" in error(gold)
    assert DeltaTable(gold.root / "gold/orders").to_pyarrow_table().num_rows == 1


def test_a_transformation_reads_tables_without_keys_or_feed(gold: Gold) -> None:
    gold.configure(
        "pipeline: {name: gold, kind: delta, state: lake, target: lake}\n"
        "upstreams: {orders: {path: ./silver/orders}}\n"
        "transform: keyless_gold:build\n"
    )
    (gold.root / "keyless_gold.py").write_text(
        "def build(changes):\n"
        "    frame = changes['orders']\n"
        "    return {'all': frame.select('id', frame['_tidegate_change'].alias('what'))}\n"
    )
    gold.append([order(1), order(2)], feed=False)
    gold.completed()
    gold.table().delete("id = 1")
    gold.append([order(3)])
    gold.completed()
    told = [(row["id"], row["what"]) for row in gold.rows("all")]
    assert sorted(told) == [(1, "delete"), (1, "insert"), (2, "insert"), (3, "insert")]


def test_a_table_that_others_made_anew_is_not_taken_for_the_one_before(gold: Gold) -> None:
    gold.append([order(1)])
    gold.completed()
    gold.append([order(2)])
    shutil.rmtree(gold.root / "gold/orders")
    write_deltalake(gold.root / "gold/orders", pa.table({"id": [0], "state": ["empty"]}))
    assert "the table is another one than before, and versions up to 0 were brought into it" in error(gold)
    assert ids(gold) == [0]


def test_changes_are_brought_into_a_table_that_somebody_has_filled_beforehand(gold: Gold) -> None:
    gold.append([order(1)])
    write_deltalake(gold.root / "gold/orders", gold.table().to_pyarrow_table())
    gold.plans().move({"silver.orders": 0}, reason="filled by hand")
    gold.append([order(2)])
    gold.completed()
    assert ids(gold) == [1, 2]


def test_a_table_of_a_transformation_that_is_gone_is_missed(gold: Gold) -> None:
    gold.configure(TWO + "transform: missed_gold:build\ntargets: {kept: {keys: [id]}}\n")
    made = "def build(changes):\n    return {{name: changes['orders'] for name in {names}}}\n"
    (gold.root / "missed_gold.py").write_text(made.format(names="['kept', 'all']"))
    gold.append([order(1)])
    gold.completed()
    gold.append([order(2)])
    shutil.rmtree(gold.root / "gold/kept")
    assert "the table is not there, and versions up to 0 were brought into it" in error(gold)
    gold.plans().prepare(rebaseline=["orders"])
    gold.completed()
    assert ids(gold, "kept") == [1, 2]


def test_a_target_with_a_later_plan_is_not_believed_to_have_this_one(gold: Gold) -> None:
    gold.append([order(1)])
    gold.completed()
    gold.append([order(2)])
    gold.now -= timedelta(days=1)  # the same name, elsewhere, by a clock that is behind
    shutil.rmtree(gold.root / "state")
    assert "it has a later plan than this one" in error(gold)
    assert gold.plans().load_checkpoints() == {"silver.orders": None}


def test_a_table_that_was_taken_back_lacks_what_was_brought_into_it(gold: Gold) -> None:
    for number in (1, 2):
        gold.append([order(number)])
        gold.completed()
    target = DeltaTable(gold.root / "gold/orders")
    write_deltalake(target, target.to_pyarrow_table().slice(0, 0), mode="append")
    target.restore(target.version() - 1)  # that undoes only what somebody else has written
    gold.append([order(3)])
    gold.completed()
    DeltaTable(gold.root / "gold/orders").restore(0)
    gold.append([order(4)])
    assert "the table was restored to 0 after versions up to 2 were brought into it" in error(gold)
    gold.plans().move({"silver.orders": 0}, reason="restored")
    gold.completed()
    assert ids(gold) == [1, 2, 3, 4]


def test_rows_of_a_run_that_was_given_up_are_not_appended_again(gold: Gold) -> None:
    gold.configure(HISTORY)
    gold.append([order(1)])
    gold.completed()
    gold.append([order(2)])
    gold.plans().prepare()
    landed(gold)
    gold.plans().move({"silver.orders": 0}, reason="it seemed to be stuck")
    assert "up to 1 already, by a run that was never recorded as done" in error(gold)
    assert ids(gold) == [1, 2]


def landed(gold: Gold) -> None:
    """The rows of the plan are in the target, and whoever brought them there died before it could say so."""
    shutil.copytree(gold.root / "state", gold.root / "saved")
    gold.completed()
    shutil.rmtree(gold.root / "state")
    shutil.move(gold.root / "saved", gold.root / "state")


def test_an_upstream_that_was_moved_by_hand_is_out_of_the_plan(gold: Gold) -> None:
    gold.configure(TWO + "transform: moved_gold:build\n")
    (gold.root / "moved_gold.py").write_text(
        "def build(changes):\n    return {name: changes[name] for name in changes}\n"
    )
    for name in ("orders", "customers"):
        gold.append([order(1)], name)
    gold.plans().prepare()
    gold.plans().move({"customers": 0}, reason="not these")
    gold.completed()
    assert ids(gold) == [1]
    assert not DeltaTable.is_deltatable(str(gold.root / "gold/customers"))


def test_a_row_that_was_deleted_softly_is_there_again_after_deletes_became_hard(gold: Gold) -> None:
    gold.configure(PIPELINE + "deletes: soft\n")
    gold.append([order(1), order(2)])
    gold.completed()
    gold.table().delete("id = 1")
    gold.completed()
    gold.configure(PIPELINE)
    gold.append([order(1, "again")])
    gold.completed()
    assert [(row["state"], row["_deleted_at"]) for row in gold.rows()] == [("again", None), ("new", None)]


@pytest.mark.parametrize("modes", [("history", "merge"), ("merge", "history")])
def test_a_table_of_changes_and_one_of_rows_are_not_mixed(gold: Gold, modes: tuple[str, str]) -> None:
    gold.configure(PIPELINE + f"write_mode: {modes[0]}\n")
    gold.append([order(1)])
    gold.completed()
    before = gold.rows()
    gold.configure(PIPELINE + f"write_mode: {modes[1]}\n")
    gold.append([order(2)])
    assert "`write_mode` was another one" in error(gold)
    assert gold.rows() == before


@pytest.mark.parametrize("more", ["", "transform: own_gold:build\n"])
def test_an_upstream_is_not_written_into_itself(gold: Gold, more: str) -> None:
    gold.configure(PIPELINE + "write_mode: history\nfirst_run: full_history\n" + more)
    (gold.root / "own_gold.py").write_text(
        "def build(changes):\n    return {'orders': changes['silver.orders']}\n"
    )
    (gold.root / "gold").symlink_to(gold.root / "silver")
    gold.append([order(1)])
    assert "it is the upstream `silver.orders` itself" in error(gold)
    assert gold.table().version() == 0


def test_an_upstream_that_is_stuck_is_told_also_behind_one_that_went_well(gold: Gold) -> None:
    gold.configure(TWO)
    for name in ("customers", "orders"):
        gold.append([order(1)], name)
    gold.completed()
    gold.append([order(2)], "customers")
    gold.plans().prepare()
    gold.append([{"id": "two", "state": "new"}], mode="overwrite", schema_mode="overwrite")
    assert gold.run().status == "FAILED"
    assert gold.plans().load_checkpoints() == {"customers": 1, "orders": 0}


def test_a_key_that_comes_again_in_a_later_plan_is_an_error(gold: Gold) -> None:
    gold.configure(PIPELINE + "deletes: soft\n")
    gold.append([order(1), order(2)])
    gold.completed()
    gold.table().delete("id = 2")
    gold.completed()
    gold.append([order(2, "again")])  # one that was deleted may come again
    gold.completed()
    gold.append([order(1, "another")])
    assert error(gold) == "the keys do not tell rows apart: id=1"
    assert gold.rows("orders", "id", "state") == [order(1), order(2, "again")]


def test_a_key_that_comes_again_and_goes_within_a_plan_takes_no_row_with_it(gold: Gold) -> None:
    gold.append([order(1)])
    gold.completed()
    gold.append([order(1, "another")])
    gold.table().delete("state = 'another'")
    assert error(gold) == "the keys do not tell rows apart: id=1"
    assert ids(gold) == [1]

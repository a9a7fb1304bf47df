"""Which versions come next, planned once and frozen until somebody says how it went."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.delta.conftest import NOW, PIPELINE, Lake, order
from tidegate.core.errors import LeaseHeld, SourceError, StateError, UsageError
from tidegate.delta.changes import Range
from tidegate.delta.library import DeltaPlans
from tidegate.delta.log import Metadata, TableLog
from tidegate.delta.plan import Plan

HOUR = timedelta(hours=1)


def ranges(plan: Plan) -> dict[str, Any]:
    return {
        item.name: (item.start_version, item.end_version, item.status)
        for item in plan.upstreams
        if item.status != "SKIPPED"
    }


def test_a_first_plan_is_a_snapshot_and_the_next_begins_after_it(lake: Lake) -> None:
    lake.append([order(1)])
    lake.append([order(2)])
    plans = lake.plans()
    first = plans.prepare()
    assert ranges(first) == {"silver.orders": (0, 1, "PLANNED")}
    assert first.upstreams[0].snapshot
    plans.complete(first.run_id, records=2)
    assert plans.load_checkpoints() == {"silver.orders": 1}
    lake.append([order(3)])
    assert plans.latest_versions() == {"silver.orders": 2}
    second = plans.prepare()
    assert second.run_id != first.run_id
    assert ranges(second) == {"silver.orders": (2, 2, "PLANNED")}
    assert not second.upstreams[0].snapshot


def test_a_plan_stays_the_same_until_it_ends_however_often_it_is_asked_for(lake: Lake) -> None:
    lake.append([order(1)])
    planned = lake.plans().prepare()
    lake.append([order(2)])
    assert lake.plans().prepare() == planned
    assert lake.plans().current_plan() == planned
    assert lake.plans().load_checkpoints() == {"silver.orders": None}


def test_nothing_new_is_no_plan(lake: Lake) -> None:
    lake.append([order(1)])
    plans = lake.plans()
    plans.complete(plans.prepare().run_id)
    again = plans.prepare()
    assert (again.run_id, again.status, again.work) == (None, "SKIPPED", ())
    assert plans.current_plan() is None


def test_a_failed_plan_is_planned_again_with_its_error(lake: Lake) -> None:
    lake.append([order(1)])
    plans = lake.plans()
    planned = plans.prepare()
    failed = plans.fail(planned.run_id, "the disk was full")
    assert (failed.status, failed.upstreams[0].error_message) == ("FAILED", "the disk was full")
    lake.append([order(2)])
    again = plans.retry()
    assert again.run_id == planned.run_id
    assert ranges(again) == {"silver.orders": (0, 0, "PLANNED")}
    assert again.upstreams[0].error_message == "the disk was full"
    plans.complete(again.run_id)
    assert plans.last_plan() is not None
    assert ranges(plans.prepare()) == {"silver.orders": (1, 1, "PLANNED")}


def test_how_a_plan_ended_is_said_once_and_of_the_right_plan(lake: Lake) -> None:
    lake.append([order(1)])
    plans = lake.plans()
    planned = plans.prepare()
    with pytest.raises(UsageError, match="there is no plan plan-x"):
        plans.complete("plan-x")
    plans.complete(planned.run_id, records=1)
    plans.complete(planned.run_id, records=5)
    plans.fail(planned.run_id, "too late")
    last = plans.last_plan()
    assert last is not None
    assert (last.status, last.upstreams[0].records_processed) == ("COMPLETED", 1)
    with pytest.raises(UsageError, match="no plan has failed"):
        plans.retry()


def test_an_open_plan_can_raise_an_alarm(lake: Lake) -> None:
    lake.configure(PIPELINE_ALERT)
    lake.append([order(1)])
    planned = lake.plans().prepare()
    with pytest.raises(StateError, match=f"{planned.run_id} was neither completed nor failed"):
        lake.plans().prepare()
    assert lake.plans().prepare(resume=True) == planned


PIPELINE_ALERT = """
pipeline: {name: gold, kind: delta, state: lake, target: lake}
upstreams:
  silver.orders: {path: ./silver/orders, keys: [id]}
on_planned: alert
"""


def test_a_plan_that_has_failed_in_part_raises_no_alarm(lake: Lake) -> None:
    lake.configure(FOUND + "all_or_nothing: true\non_planned: alert\n")
    for name in ("orders", "customers"):
        lake.append([order(1)], name)
    plans = lake.plans()
    first = plans.prepare()
    plans.fail(first.run_id, "broken", names=["orders"])
    assert plans.prepare().run_id == first.run_id


@pytest.mark.parametrize(
    ("first_run", "expected"),
    [
        ("snapshot", (0, 3, True)),
        ("full_history", (0, 3, False)),
        ("{version: 2}", (2, 3, False)),
        (f"{{timestamp: '{NOW + HOUR}'}}", (1, 3, False)),
    ],
)
def test_where_a_stream_begins(lake: Lake, first_run: str, expected: tuple[int, int, bool]) -> None:
    for number in range(4):
        lake.append([order(number)])
    lake.rewrite_moments("orders", {number: NOW + number * HOUR for number in range(4)})
    lake.configure(
        "pipeline: {name: gold, kind: delta, state: lake, target: lake}\n"
        f"upstreams: {{silver.orders: {{path: ./silver/orders, keys: [id], first_run: {first_run}}}}}\n"
    )
    [upstream] = lake.plans().prepare().upstreams
    assert (upstream.start_version, upstream.end_version, upstream.snapshot) == expected


@pytest.mark.parametrize("first_run", ["{version: 7}", f"{{timestamp: '{NOW + 40 * HOUR}'}}"])
def test_a_stream_whose_beginning_is_to_come_waits_for_it(lake: Lake, first_run: str) -> None:
    lake.append([order(1)])
    lake.rewrite_moments("orders", {0: NOW})
    lake.configure(
        "pipeline: {name: gold, kind: delta, state: lake, target: lake}\n"
        f"upstreams: {{silver.orders: {{path: ./silver/orders, keys: [id], first_run: {first_run}}}}}\n"
    )
    assert lake.plans().prepare().run_id is None


@pytest.mark.parametrize("first_run", ["full_history", "{version: 1}"])
def test_a_first_plan_ends_before_a_change_that_no_feed_crosses(lake: Lake, first_run: str) -> None:
    lake.configure(PIPELINE + f"first_run: {first_run}\non_schema_change: stop\n")
    lake.append([order(1)])
    lake.append([order(2)])
    lake.append([{**order(3), "price": 3}], schema_mode="merge")
    lake.append([{"id": "four", "state": "new"}], mode="overwrite", schema_mode="overwrite")
    plans = lake.plans()
    first = plans.prepare()
    assert first.upstreams[0].end_version == 2
    assert "ends before version 3" in first.notes[0]
    plans.complete(first.run_id)
    with pytest.raises(SourceError, match="version 3"):
        plans.prepare()


def test_a_mark_that_was_set_by_hand_before_a_change_of_columns_stops_there_too(lake: Lake) -> None:
    for number in range(2):
        lake.append([order(number)])
    lake.append([{"id": "three", "state": "new"}], mode="overwrite", schema_mode="overwrite")
    plans = lake.plans()
    plans.move({"silver.orders": 0}, reason="brought by others")
    assert ranges(plans.prepare()) == {"silver.orders": (1, 1, "PLANNED")}


def test_a_mark_that_was_moved_back_stops_before_a_change_that_was_decided_about(lake: Lake) -> None:
    for number in range(2):
        lake.append([order(number)])
    plans = lake.plans()
    plans.complete(plans.prepare().run_id)
    lake.append([{"id": "three", "state": "new"}], mode="overwrite", schema_mode="overwrite")
    plans.complete(plans.prepare(rebaseline=["silver.orders"]).run_id)
    plans.move({"silver.orders": 0}, reason="again")
    assert ranges(plans.prepare()) == {"silver.orders": (1, 1, "PLANNED")}


FOUND = """
pipeline: {name: gold, kind: delta, state: lake, target: lake}
upstreams: {from: ./silver/*, exclude: [tmp_*], keys: [id]}
"""


def test_upstreams_are_found_by_a_pattern(lake: Lake) -> None:
    lake.configure(FOUND)
    for name in ("orders", "customers", "tmp_orders"):
        lake.append([order(1)], name)
    (lake.root / "silver" / "notes").mkdir()
    plans = lake.plans()
    assert ranges(plans.prepare()) == {"customers": (0, 0, "PLANNED"), "orders": (0, 0, "PLANNED")}
    assert [item.target_name for item in plans.upstreams().values()] == ["customers", "orders"]


def test_upstreams_that_are_found_have_targets_of_their_own(lake: Lake) -> None:
    lake.configure(FOUND.replace("./silver/*", "./silver/*/*"))
    for name in ("sales/orders", "returns/orders"):
        lake.append([order(1)], name)
    found = lake.plans().upstreams().values()
    assert [item.target_name for item in found] == ["returns.orders", "sales.orders"]


def test_two_tables_that_would_have_one_name_are_no_upstream_that_is_missed(lake: Lake) -> None:
    lake.configure(FOUND.replace("./silver/*", "./silver/*/*"))
    for name in ("a.b/c", "a/b.c"):
        lake.append([order(1)], name)
    with pytest.raises(UsageError, match=r"both be called `a\.b\.c`"):
        lake.plans().prepare()


def test_a_pattern_that_finds_nothing_says_so(lake: Lake) -> None:
    lake.configure(FOUND)
    with pytest.raises(SourceError, match="no Delta table was found"):
        lake.plans().prepare()


def test_aligned_upstreams_end_at_one_common_moment(lake: Lake) -> None:
    lake.configure(FOUND + "align: commit_timestamp\nlag: 10s\n")
    for name in ("orders", "customers"):
        for number in range(3):
            lake.append([order(number)], name)
    late = NOW - timedelta(seconds=5)
    lake.rewrite_moments("orders", {0: NOW - 2 * HOUR, 1: NOW - HOUR, 2: late})
    lake.rewrite_moments("customers", {0: NOW - 2 * HOUR, 1: late, 2: late})
    plans = lake.plans()
    planned = plans.prepare()
    assert ranges(planned) == {"customers": (0, 0, "PLANNED"), "orders": (0, 1, "PLANNED")}
    plans.complete(planned.run_id)
    lake.now += HOUR
    assert ranges(plans.prepare()) == {"customers": (1, 2, "PLANNED"), "orders": (2, 2, "PLANNED")}


def test_upstreams_on_their_own_go_on_while_another_fails(lake: Lake) -> None:
    lake.configure(FOUND)
    for name in ("orders", "customers"):
        lake.append([order(1)], name)
    plans = lake.plans()
    first = plans.prepare()
    plans.complete(first.run_id, names=["customers"])
    plans.fail(first.run_id, "broken", names=["orders"])
    lake.append([order(2)], "customers")
    second = plans.prepare()
    assert ranges(second) == {"customers": (1, 1, "PLANNED"), "orders": (0, 0, "PLANNED")}
    assert second.run_id != first.run_id
    plans.complete(second.run_id)
    assert plans.load_checkpoints() == {"customers": 1, "orders": 0}


def test_upstreams_that_belong_together_wait_for_the_one_that_failed(lake: Lake) -> None:
    lake.configure(FOUND + "all_or_nothing: true\n")
    for name in ("orders", "customers"):
        lake.append([order(1)], name)
    plans = lake.plans()
    first = plans.prepare()
    plans.complete(first.run_id, names=["customers"])
    plans.fail(first.run_id, "broken", names=["orders"])
    lake.append([order(2)], "customers")
    second = plans.prepare()
    assert second.run_id == first.run_id
    assert [item.name for item in second.work] == ["orders"]


def test_planners_at_the_same_time_make_one_plan(lake: Lake) -> None:
    lake.append([order(1)])

    def prepare(_: int) -> str | None:
        while True:
            try:
                with DeltaPlans("gold", project=lake.root) as plans:
                    return plans.prepare().run_id
            except LeaseHeld:
                continue

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(prepare, range(8)))) == 1


def test_whoever_plans_is_named_to_the_second(lake: Lake) -> None:
    lake.append([order(1)])
    with lake.plans(command="job one").processing() as plan:
        assert plan.run_id is not None
        with pytest.raises(LeaseHeld, match="job one"):
            lake.plans().prepare()
    assert lake.plans().load_checkpoints() == {"silver.orders": 0}


def test_a_block_that_raises_fails_its_plan(lake: Lake) -> None:
    lake.append([order(1)])
    with pytest.raises(ZeroDivisionError), lake.plans().processing():
        _ = 1 // 0
    plan = lake.plans().current_plan()
    assert plan is not None
    assert plan.upstreams[0].error_message == "ZeroDivisionError: integer division or modulo by zero"


def test_pipelines_over_the_same_upstreams_do_not_collide(lake: Lake) -> None:
    lake.append([order(1)])
    store = f"delta://{lake.root}/state"
    upstreams = {"orders": lake.place()}
    one, other = (DeltaPlans(name, upstreams, store=store) for name in ("one", "other"))
    one.complete(one.prepare().run_id)
    assert (one.load_checkpoints(), other.load_checkpoints()) == ({"orders": 0}, {"orders": None})
    assert ranges(other.prepare()) == {"orders": (0, 0, "PLANNED")}


def test_any_delta_reader_finds_plans_in_the_table_of_watermarks(lake: Lake) -> None:
    lake.append([order(1)])
    plans = lake.plans()
    first = plans.prepare()
    plans.complete(first.run_id, records=1)
    lake.append([order(2)])
    second = plans.prepare()
    plans.fail(second.run_id, "broken")
    columns = ["table_name", "run_id", "start_version", "end_version", "last_processed_version", "status"]
    rows = DeltaTable(lake.root / "state/watermarks").to_pyarrow_table(columns=columns).to_pylist()
    assert [tuple(row.values()) for row in sorted(rows, key=lambda row: row["end_version"])] == [
        ("silver.orders", first.run_id, 0, 0, 0, "COMPLETED"),
        ("silver.orders", second.run_id, 1, 1, 0, "FAILED"),
    ]
    kinds = [line["kind"] for line in plans.history()]
    assert kinds == ["planned", "completed", "planned", "failed"]


# --- Trouble ---------------------------------------------------------------------


def planned_once(lake: Lake) -> DeltaPlans:
    lake.append([order(1)])
    plans = lake.plans()
    plans.complete(plans.prepare().run_id)
    return plans


def test_versions_whose_log_was_cleaned_up_are_found_and_a_rebaseline_is_offered(lake: Lake) -> None:
    plans = planned_once(lake)
    for number in range(2, 5):
        lake.append([order(number)])
    lake.table().create_checkpoint()
    (lake.place() / "_delta_log" / f"{2:020}.json").unlink()
    with pytest.raises(SourceError, match="unreadable: the commit of version 2 was cleaned up") as caught:
        plans.prepare()
    assert caught.value.hint is not None
    assert "--rebaseline silver.orders" in caught.value.hint
    again = plans.prepare(rebaseline=["silver.orders"])
    assert ranges(again) == {"silver.orders": (0, 3, "PLANNED")}
    assert again.upstreams[0].snapshot


def test_versions_whose_files_vacuum_took_are_found_before_they_are_read(lake: Lake) -> None:
    plans = planned_once(lake)
    lake.append([order(2)])
    lake.append([order(3)], mode="overwrite")
    lake.table().vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(SourceError, match="VACUUM has taken"):
        plans.prepare()


def test_a_table_that_was_made_anew_is_recognised(lake: Lake) -> None:
    plans = planned_once(lake)
    shutil.rmtree(lake.place())
    for number in range(3):
        lake.append([order(number)])
    with pytest.raises(SourceError, match="the table was made anew"):
        plans.prepare()


def test_a_history_that_was_rewritten_is_recognised(lake: Lake) -> None:
    lake.append([order(1)])
    lake.append([order(2)])
    plans = lake.plans()
    plans.complete(plans.prepare().run_id)
    (lake.place() / "_delta_log" / f"{1:020}.json").unlink()
    with pytest.raises(SourceError, match="its history was rewritten"):
        plans.prepare()


def an_older_copy_is_put_back_and_written_to(lake: Lake, write: Callable[[], None]) -> None:
    copy = lake.root / "copy"
    shutil.copytree(lake.place(), copy)
    write()
    shutil.rmtree(lake.place())
    shutil.move(copy, lake.place())
    for number in (7, 8):
        lake.append([order(number)])


def test_an_older_copy_of_a_table_that_was_written_to_is_recognised(lake: Lake) -> None:
    plans = planned_once(lake)

    def write() -> None:
        lake.append([order(2)])
        plans.complete(plans.prepare().run_id)

    an_older_copy_is_put_back_and_written_to(lake, write)
    with pytest.raises(SourceError, match="version 1 is not the one that was processed"):
        plans.prepare()
    assert plans.prepare(rebaseline=["silver.orders"]).upstreams[0].end_version == 2


@pytest.mark.parametrize("happened", ["cleaned up", "rewritten"])
def test_a_plan_is_not_read_from_a_history_that_is_another_one_by_now(lake: Lake, happened: str) -> None:
    plans = planned_once(lake)

    def write() -> None:
        lake.append([order(2)])
        plans.prepare()

    if happened == "rewritten":
        an_older_copy_is_put_back_and_written_to(lake, write)
    else:
        write()
        lake.append([order(3)])
        lake.table().create_checkpoint()
        (lake.place() / "_delta_log" / f"{1:020}.json").unlink()
    plan = plans.current_plan()
    assert plan is not None
    part = Range(plans.upstreams()["silver.orders"], plan.work[0], str(lake.place()))
    with pytest.raises(SourceError, match=f"{happened}.* since it was planned"):
        part.reading(TableLog.at(part.place))


def test_keys_that_an_upstream_does_not_have_are_named(lake: Lake) -> None:
    lake.configure(PIPELINE.replace("[id]", "[ID, day]"))
    lake.append([order(1)])
    with pytest.raises(SourceError, match="it has no column `day`, which `keys` names"):
        lake.plans().prepare()


def test_columns_in_another_order_are_no_other_columns(lake: Lake) -> None:
    lake.configure(PIPELINE + "on_schema_change: stop\n")
    plans = planned_once(lake)
    lake.append([{"state": "new", "id": 1}], mode="overwrite", schema_mode="overwrite")
    lake.append([{"state": "new", "id": 2}])
    assert ranges(plans.prepare()) == {"silver.orders": (1, 2, "PLANNED")}


def test_what_a_field_in_a_column_says_beside_its_type_is_no_other_type() -> None:
    one, other = (
        Metadata.of(nested(comment, nullable)) for comment, nullable in (("", True), ("new", False))
    )
    assert one.same_columns(other)
    assert one.fingerprint == other.fingerprint


def nested(comment: str, nullable: bool) -> dict[str, Any]:  # noqa: FBT001
    inner = {"name": "city", "type": "string", "nullable": nullable, "metadata": {"comment": comment}}
    kind = {"type": "struct", "fields": [inner]}
    column = {"name": "address", "type": kind, "nullable": True, "metadata": {}}
    return {"id": "t", "schemaString": json.dumps({"type": "struct", "fields": [column]})}


def test_a_new_column_is_followed_and_recorded(lake: Lake) -> None:
    plans = planned_once(lake)
    lake.append([{**order(2), "price": 3}], schema_mode="merge")
    assert ranges(plans.prepare()) == {"silver.orders": (1, 1, "PLANNED")}
    [change] = [line for line in plans.history() if line["kind"] == "schema changed"]
    assert change["changes"] == ["`price` is new"]


def test_a_plan_ends_before_a_column_changes_its_type_and_the_next_stops_there(lake: Lake) -> None:
    plans = planned_once(lake)
    lake.append([order(2)])
    lake.append([{"id": "three", "state": "new"}], mode="overwrite", schema_mode="overwrite")
    planned = plans.prepare()
    assert ranges(planned) == {"silver.orders": (1, 1, "PLANNED")}
    assert "ends before version 2" in planned.notes[0]
    plans.complete(planned.run_id)
    with pytest.raises(SourceError, match='version 2: `id` was "long" and is "string"'):
        plans.prepare()
    shown = plans.last_plan()
    assert shown is not None
    assert "`id` was" in str(shown.upstreams[0].error_message)


@pytest.mark.parametrize(("policy", "expected"), [("stop", None), ("rebaseline", (0, 1, "PLANNED"))])
def test_the_policy_decides_about_changed_columns(lake: Lake, policy: str, expected: Any) -> None:
    lake.configure(PIPELINE + f"on_schema_change: {policy}\n")
    plans = planned_once(lake)
    lake.append([{**order(2), "price": 3}], schema_mode="merge")
    if expected is None:
        with pytest.raises(SourceError, match="`price` is new"):
            plans.prepare()
    else:
        planned = plans.prepare()
        assert ranges(planned) == {"silver.orders": expected}
        assert "read whole again" in planned.notes[0]


def test_a_table_without_a_feed_is_refused_where_that_is_the_policy(lake: Lake) -> None:
    lake.configure(PIPELINE + "without_feed: refuse\n")
    lake.append([order(1)], feed=False)
    plans = lake.plans()
    plans.complete(plans.prepare().run_id)
    lake.append([order(2)])
    with pytest.raises(SourceError, match="change data feed is not enabled"):
        plans.prepare()


def test_an_upstream_that_is_not_there_is_named(lake: Lake) -> None:
    with pytest.raises(SourceError, match="there is no Delta table"):
        lake.plans().prepare()

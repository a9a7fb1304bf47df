"""Plans that end at a moment: by clocks that are not one clock, and together."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.delta.conftest import NOW, Lake, order
from tests.delta.test_planning import FOUND, HOUR, ranges
from tidegate.core.errors import SourceError

MINUTE = timedelta(minutes=1)


def since(lake: Lake, moment: object) -> None:
    lake.configure(
        "pipeline: {name: gold, kind: delta, state: lake, target: lake}\n"
        "upstreams: {silver.orders: {path: ./silver/orders, keys: [id], first_run: {timestamp: "
        f"'{moment}'}}}}}}\n"
    )


def test_a_writer_whose_clock_is_behind_hides_no_version_that_came_before(lake: Lake) -> None:
    since(lake, NOW)
    for number in range(4):
        lake.append([order(number)])
    lake.rewrite_moments("orders", {0: NOW - HOUR, 1: NOW, 2: NOW - 2 * MINUTE, 3: NOW - MINUTE})
    assert ranges(lake.plans().prepare()) == {"silver.orders": (1, 3, "PLANNED")}


def test_a_beginning_that_the_log_no_longer_has_is_named(lake: Lake) -> None:
    since(lake, NOW - 10 * HOUR)
    for number in range(3):
        lake.append([order(number)])
    lake.rewrite_moments("orders", {number: NOW + number * MINUTE for number in range(3)})
    lake.table().create_checkpoint()
    for version in (0, 1):
        (lake.place() / "_delta_log" / f"{version:020}.json").unlink()
    with pytest.raises(SourceError, match="the commit of version 1 was cleaned up"):
        lake.plans().prepare()


def test_what_was_committed_after_the_common_moment_waits_whatever_a_later_version_says(lake: Lake) -> None:
    lake.configure(FOUND + "align: commit_timestamp\n")
    for number in range(3):
        lake.append([order(number)])
    lake.rewrite_moments("orders", {0: NOW - HOUR, 1: NOW + HOUR, 2: NOW - MINUTE})
    plans = lake.plans()
    planned = plans.prepare()
    assert ranges(planned) == {"orders": (0, 0, "PLANNED")}
    plans.complete(planned.run_id)
    assert plans.prepare().run_id is None
    lake.now += 2 * HOUR
    assert ranges(plans.prepare()) == {"orders": (1, 2, "PLANNED")}


def test_one_that_ends_before_a_change_of_its_columns_takes_the_others_with_it(lake: Lake) -> None:
    lake.configure(FOUND + "align: commit_timestamp\n")
    for name in ("orders", "customers"):
        lake.append([order(1)], name)
    lake.rewrite_moments("orders", {0: NOW - 3 * HOUR})
    lake.rewrite_moments("customers", {0: NOW - 3 * HOUR})
    plans = lake.plans()
    plans.complete(plans.prepare().run_id)
    lake.append([order(2)])
    lake.append([{"id": "three", "state": "new"}], mode="overwrite", schema_mode="overwrite")
    for number in (2, 3):
        lake.append([order(number)], "customers")
    lake.rewrite_moments("orders", {1: NOW - 2 * HOUR, 2: NOW - HOUR})
    lake.rewrite_moments("customers", {1: NOW - 2 * HOUR, 2: NOW - MINUTE})
    planned = plans.prepare()
    assert ranges(planned) == {"customers": (1, 1, "PLANNED"), "orders": (1, 1, "PLANNED")}
    assert "ends before version 2" in planned.notes[0]


def test_a_plan_has_a_larger_number_than_any_before_it_even_if_the_clock_was_set_back(lake: Lake) -> None:
    """Tables that are made of several upstreams remember only the largest number that has come to them."""
    lake.configure(FOUND + "all_or_nothing: true\n")
    for name in ("customers", "orders"):
        lake.append([order(1)], name)
    plans = lake.plans()
    first = plans.prepare()
    plans.complete(first.run_id)
    lake.now -= HOUR
    for name in ("customers", "orders"):
        lake.append([order(2)], name)
        planned = plans.prepare()
        [work] = planned.work
        assert work.number > max(item.number for item in first.upstreams)
        first = planned
        plans.complete(planned.run_id)

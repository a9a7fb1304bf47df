"""A plan of upstreams that belong together is written whole, or was never made."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

import pytest

from tests.delta.conftest import Lake, order
from tests.delta.test_planning import FOUND, ranges
from tidegate.core.errors import LeaseHeld, StateError
from tidegate.state.opening import open_store

NAMES = ("customers", "orders", "payments")


class Failing:
    """A store that takes so many records and no more, as one does whose planner is killed."""

    def __init__(self, store: Any, takes: int) -> None:
        self._store = store
        self._left = takes
        self._guard = Lock()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        return self._counted(value) if name == "write" else value

    def _counted(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            with self._guard:
                self._left -= 1
                if self._left < 0:
                    raise StateError("the planner was killed")
            return write(*args, **kwargs)

        return counted


@pytest.fixture
def together(lake: Lake) -> Lake:
    lake.configure(FOUND + "align: commit_timestamp\nlag: 0s\n")
    for name in NAMES:
        lake.append([order(1)], name)
    return lake


def killed(lake: Lake, after: int, **options: Any) -> None:
    plans = lake.plans(store=Failing(open_store(f"file://{lake.root}/marks"), after))
    with pytest.raises(StateError, match="killed"):
        plans.prepare(**options)


def plans_of(lake: Lake) -> Any:
    return lake.plans(store=f"file://{lake.root}/marks")


@pytest.mark.parametrize("written", [1, 2])
def test_a_plan_that_was_not_written_to_its_end_is_made_anew(together: Lake, written: int) -> None:
    killed(together, written)
    assert plans_of(together).current_plan() is None
    assert plans_of(together).last_plan() is None
    for name in NAMES:
        together.append([order(2)], name)
    killed(together, 1)  # and again
    planned = plans_of(together).prepare()
    assert ranges(planned) == dict.fromkeys(NAMES, (0, 1, "PLANNED"))
    assert plans_of(together).prepare() == planned
    plans_of(together).complete(planned.run_id)
    assert set(plans_of(together).load_checkpoints().values()) == {1}


def test_a_whole_plan_stays_whole_while_it_is_failed_retried_and_rebaselined(together: Lake) -> None:
    plans = plans_of(together)
    first = plans.prepare()
    plans.start(first.run_id, NAMES)
    plans.complete(first.run_id, names=["customers"])
    plans.fail(first.run_id, "broken", names=["orders"])
    assert plans.prepare().run_id == first.run_id
    plans.fail(first.run_id, "broken", names=["orders"])
    for name in NAMES:
        together.append([order(2)], name)
    again = plans.prepare(rebaseline=["orders"])
    assert again.run_id == first.run_id  # nothing else joins it
    assert ranges(again) == {
        "customers": (0, 0, "COMPLETED"),
        "orders": (0, 1, "PLANNED"),
        "payments": (0, 0, "PLANNED"),
    }


def test_a_rebaseline_that_was_killed_leaves_the_plan_as_it_is(together: Lake) -> None:
    plans = plans_of(together)
    first = plans.prepare()
    killed(together, 0, rebaseline=["orders"])
    assert plans.prepare() == first


def test_a_table_that_was_to_be_read_whole_is_even_if_the_plan_was_not_written_to_its_end(lake: Lake) -> None:
    lake.configure(
        FOUND + "all_or_nothing: true\nfirst_run: full_history\non_schema_change: rebaseline\n",
    )
    for name in NAMES:
        lake.append([order(1)], name)
    plans_of(lake).complete(plans_of(lake).prepare().run_id)
    for name in NAMES:  # made anew: what is in the targets has to go
        shutil.rmtree(lake.place(name))
        lake.append([order(2)], name)
    killed(lake, 1)
    assert [item.snapshot for item in plans_of(lake).prepare().work] == [True, True, True]


def test_two_threads_with_the_same_plans_are_two_planners(together: Lake) -> None:
    plans = plans_of(together)
    with plans.processing(), ThreadPoolExecutor(1) as pool, pytest.raises(LeaseHeld):
        pool.submit(plans.prepare).result()

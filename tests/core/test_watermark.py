"""The committed state as JSON: the same after a round trip, and never believed when misshapen."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.generated import NOW, events, json_values, watermarks
from tidegate.core.errors import DamagedRecord
from tidegate.core.leases import Holder, Lease
from tidegate.core.shape import demand_shape
from tidegate.core.watermark import Event, RunState, Watermark, from_json, to_json


@given(watermarks)
def test_a_watermark_is_the_same_after_a_round_trip_through_json(mark: Watermark) -> None:
    assert from_json(json.loads(json.dumps(to_json(mark)))) == mark


@given(events)
def test_an_event_is_the_same_after_a_round_trip_through_json(event: Event) -> None:
    assert Event.from_json(json.loads(json.dumps(event.to_json()))) == event


@pytest.mark.parametrize("name", ["kind", "at", "run_id"])
def test_an_events_data_cannot_overwrite_what_every_event_says(name: str) -> None:
    with pytest.raises(ValueError, match="cannot use the names"):
        Event("planned", NOW, None, {name: "x"})


@given(watermarks)
def test_a_record_of_an_older_format_is_upgraded(mark: Watermark) -> None:
    run = replace(mark.run, rules=None, findings=None, quarantined=(), rows_aside=0) if mark.run else None
    before = replace(mark, schema=mark.schemas[-1][0] if mark.schemas else None, names=(), run=run)
    record = {**to_json(before), "format": 1}
    del record["schema"], record["names"]
    for name in ("rules", "findings", "quarantined", "rows_aside") if record["run"] else ():
        del record["run"][name]
    assert from_json(record) == before


@given(watermarks, st.data())
def test_a_record_with_a_field_missing_is_damaged(mark: Watermark, data: st.DataObject) -> None:
    record = to_json(mark)
    del record[data.draw(st.sampled_from(sorted(record)))]
    with pytest.raises(DamagedRecord):
        from_json(record)


@given(watermarks, st.data())
def test_a_record_with_any_other_value_is_understood_or_damaged_and_nothing_else(
    mark: Watermark, data: st.DataObject
) -> None:
    record = to_json(mark)
    record[data.draw(st.sampled_from(sorted(record)))] = data.draw(json_values)
    try:
        understood = from_json(record)
    except DamagedRecord:
        return
    demand_shape(understood, Watermark)
    assert from_json(to_json(understood)) == understood


@pytest.mark.parametrize("record", [None, [], "text", 7, {}, {"format": 2}])
def test_what_is_no_record_is_damaged(record: Any) -> None:
    with pytest.raises(DamagedRecord):
        from_json(record)


def test_a_run_is_open_until_it_has_succeeded_or_was_given_up() -> None:
    assert {state for state in RunState if state.open} == {
        RunState.PLANNED,
        RunState.RUNNING,
        RunState.FAILED,
    }


def test_a_lease_is_the_same_after_a_round_trip_and_after_renewals() -> None:
    holder = Holder(host="h", boot_id="b", pid_namespace="n", pid=7, process_start="9", command="c")
    lease = Lease(holder, fence=3, nonce="x", acquired_at=NOW, expires_at=NOW + timedelta(seconds=60))
    assert Lease.from_json(json.loads(json.dumps(lease.to_json()))) == lease
    renewed = lease.renewed(NOW + timedelta(seconds=30), timedelta(seconds=60))
    assert renewed.same(lease)
    assert not renewed.same(None)
    assert not lease.expired(NOW + timedelta(seconds=59))
    assert lease.expired(NOW + timedelta(seconds=60))
    assert not renewed.expired(NOW + timedelta(seconds=60))

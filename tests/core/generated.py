"""Positions, windows and watermarks as Hypothesis makes them up."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import strategies as st

from tidegate.core.positions import Position, Value
from tidegate.core.quality import Findings
from tidegate.core.receipts import Segment
from tidegate.core.watermark import (
    Candidate,
    Event,
    Extracted,
    Loaded,
    Round,
    Run,
    RunKind,
    RunState,
    StreamId,
    Watermark,
)
from tidegate.core.windows import Window

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)

texts = st.text(max_size=12)
counts = st.integers(0, 2**70)
moments = st.datetimes(timezones=st.just(UTC))
wall_clock_readings = st.datetimes()
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)

ordered_values: st.SearchStrategy[Value] = st.one_of(
    st.integers(),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.dates(),
)
values: st.SearchStrategy[Value] = st.one_of(
    ordered_values, moments, wall_clock_readings, texts, st.binary(max_size=8)
)
positions = st.lists(values, min_size=1, max_size=3).map(lambda items: Position(tuple(items)))
ids = st.integers(-20, 20).map(Position.of)


def ordered_pair(one: Position | None, other: Position | None) -> Window:
    if one is not None and other is not None and other < one:
        one, other = other, one
    return Window(one, other)


id_windows = st.builds(ordered_pair, st.none() | ids, st.none() | ids)
any_windows = st.one_of(
    id_windows,
    st.builds(lambda low: Window(low, None), positions),
    st.builds(lambda high: Window(None, high), positions),
)

segments = st.builds(
    Segment,
    key=texts,
    rows=counts,
    bytes=counts,
    etag=texts,
    checksum=texts,
    run=counts,
    chunk=counts,
    window=any_windows,
    schema=texts,
    overlaps=st.booleans(),
)
tallies = st.dictionaries(texts, counts, max_size=2).map(lambda found: tuple(found.items()))
rounds = st.builds(Round, window=any_windows, cuts=st.lists(positions, max_size=3).map(tuple), done=counts)
runs = st.builds(
    Run,
    id=texts,
    number=counts,
    kind=st.sampled_from(RunKind),
    state=st.sampled_from(RunState),
    window=any_windows,
    progress=st.none() | positions,
    started_at=moments,
    round=st.none() | rounds,
    chunks_done=counts,
    staged=st.lists(segments, max_size=2).map(tuple),
    rules=st.none() | texts,
    findings=st.none()
    | st.builds(
        Findings,
        rows=counts,
        nulls=st.dictionaries(texts, counts, max_size=2).map(lambda found: tuple(found.items())),
        failed=st.dictionaries(texts, counts, max_size=2).map(lambda found: tuple(found.items())),
        newest=st.none() | moments,
    ),
    quarantined=st.lists(segments, max_size=1).map(tuple),
    rows_aside=counts,
    rows=counts,
    lossy=tallies,
    lookback=st.booleans(),
    finished_at=st.none() | moments,
    error=st.none() | texts,
)
candidates = st.builds(
    Candidate, position=positions, seen_at=moments, open=st.lists(texts, max_size=3).map(tuple)
)
watermarks = st.builds(
    Watermark,
    stream=st.builds(StreamId, texts, texts),
    created_at=moments,
    updated_at=moments,
    cursor=st.lists(texts, max_size=3).map(tuple),
    extracted=st.builds(Extracted, st.none() | positions, counts, counts, st.none() | moments, tallies),
    loaded=st.builds(Loaded, st.none() | positions, counts, st.none() | moments),
    pending=st.lists(segments, max_size=3).map(tuple),
    run=st.none() | runs,
    runs=counts,
    generation=counts,
    candidates=st.lists(candidates, max_size=2).map(tuple),
    began=st.none() | positions,
    covered=st.lists(any_windows, max_size=3).map(tuple),
    schemas=st.dictionaries(texts, json_values, max_size=2).map(lambda found: tuple(found.items())),
    schema=st.none() | texts,
    names=st.dictionaries(texts, texts, max_size=2).map(lambda found: tuple(found.items())),
    last_error=st.none() | texts,
    manual=st.none() | texts,
)
events = st.builds(
    Event,
    kind=texts,
    at=moments,
    run_id=st.none() | texts,
    data=st.dictionaries(
        texts.filter(lambda name: name not in ("kind", "at", "run_id")), json_values, max_size=3
    ),
)

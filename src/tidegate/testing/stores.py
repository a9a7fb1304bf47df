"""The contract every store keeps, as tests. Whoever adds a store runs them on it:

    class TestMyStore(StoreContract):
        @pytest.fixture
        def opener(self, tmp_path):
            return functools.partial(MyStore, tmp_path)

        @pytest.fixture
        def damage(self, tmp_path):
            def damage(stream):
                ...  # overwrite the stream's record with garbage

            return damage

`opener` opens the same store again and again, also in other processes: it must be possible to pickle it.
"""

# ruff: noqa: PLR2004 - expected values are plain numbers

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import count
from multiprocessing.context import ForkServerContext
from typing import Any, TypeVar

import pytest

from tidegate.core import transitions
from tidegate.core.errors import Conflict, DamagedRecord, LeaseHeld, LeaseLost, StateError
from tidegate.core.leases import Holder, Lease
from tidegate.core.positions import Position
from tidegate.core.receipts import Receipt, Segment
from tidegate.core.watermark import Event, Extracted, RunKind, StreamId, Watermark, to_json
from tidegate.core.windows import Window
from tidegate.state.contract import Store, Stored
from tidegate.state.hold import hold
from tidegate.state.process import this_process
from tidegate.state.rules import next_fence

Opener = Callable[[], Store]
Damage = Callable[[StreamId], None]
T = TypeVar("T")

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
TTL = timedelta(seconds=60)
STREAM = StreamId("shop", "orders")
WRITERS = 20

ODD_NAMES = (
    "with space",
    " leading and trailing ",
    "double \" and single ' quote",
    "slash/back\\slash",
    "..",
    ".hidden",
    "",
    "semi;colon -- comment %s ? %41",
    "line\nbreak\tand tab",
    "Orders",
    "orders",
    "ORDERS",
    "größe",
    "große",
    "grosse",
    "gro\u0308ße",
    "注文",
    "🛒",
    "a" * 300,
    "a" * 299 + "b",
    "A" * 300,
    "ß" * 300,
    "orders.json",
    "orders.json.damaged-1",
    "trailing dot.",
    "~",
    "x~~y",
)

_LIVING = Holder(host="elsewhere", boot_id="b", pid_namespace="n", pid=1, process_start="s", command="a sync")
"""On another machine: nobody here can know whether it lives."""


def mark(stream: StreamId = STREAM, number: int = 0) -> Watermark:
    """A watermark that says `number` in two places, so that a torn one can be recognised."""
    return replace(
        transitions.new(stream, ("id",), NOW),
        extracted=Extracted(Position.of(number), rows_total=number, rows_last_run=0, at=NOW),
        runs=number,
    )


def event(number: int) -> Event:
    return Event("counted", NOW, None, {"number": number})


def take(store: Store, stream: StreamId = STREAM, *, nonce: str = "n1", now: datetime = NOW) -> Lease:
    return store.acquire(stream, _LIVING, now=now, ttl=TTL, nonce=nonce)


class StoreContract:
    @pytest.fixture
    def opener(self) -> Opener:
        raise NotImplementedError("override `opener`")

    @pytest.fixture
    def damage(self) -> Damage:
        raise NotImplementedError("override `damage`")

    @pytest.fixture
    def store(self, opener: Opener) -> Iterator[Store]:
        with closing(opener()) as store:
            yield store

    # --- Compare and set -------------------------------------------------------

    def test_a_stream_nobody_wrote_has_version_zero_and_no_watermark(self, store: Store) -> None:
        assert store.read(STREAM) == Stored(STREAM)
        assert store.history(STREAM) == []
        assert store.streams().streams == ()

    def test_a_write_is_read_back_as_it_was_written(self, store: Store, opener: Opener) -> None:
        lease = take(store)
        assert store.write(mark(number=7), expected=0, lease=lease) == 1
        with closing(opener()) as another:
            assert another.read(STREAM) == Stored(STREAM, 1, mark(number=7), lease)

    def test_a_write_that_expects_another_version_changes_nothing(self, store: Store) -> None:
        lease = take(store)
        store.write(mark(number=1), expected=0, lease=lease)
        for wrong in (0, 2):
            with pytest.raises(Conflict):
                store.write(mark(number=9), expected=wrong, lease=lease, events=[event(9)])
        assert store.read(STREAM).watermark == mark(number=1)
        assert store.history(STREAM) == []

    def test_racing_threads_lose_no_update(self, store: Store, opener: Opener) -> None:
        lease = take(store)
        start = threading.Barrier(WRITERS)
        with ThreadPoolExecutor(WRITERS) as pool:
            work = [pool.submit(_count_up, opener, lease, 5, start.wait) for _ in range(WRITERS)]
            _ = [item.result() for item in work]
        _demand_all_counted(store, WRITERS * 5)

    def test_racing_processes_lose_no_update(self, store: Store, opener: Opener) -> None:
        lease = take(store)
        _in_processes(_count_up, [(opener, lease, 3)] * WRITERS)
        _demand_all_counted(store, WRITERS * 3)

    def test_a_reader_never_sees_a_torn_record(self, store: Store, opener: Opener) -> None:
        lease = take(store)
        done = threading.Event()
        with ThreadPoolExecutor(3) as pool:
            readers = [pool.submit(_read_until, opener, done) for _ in range(3)]
            for number in range(1, 61):
                filler = replace(mark(number=number), last_error="x" * 997 * (number % 40))
                store.write(filler, expected=number - 1, lease=lease, events=[event(number)])
            done.set()
            assert all(reader.result() > 0 for reader in readers)

    # --- Leases ----------------------------------------------------------------

    def test_a_held_stream_is_refused_and_the_holder_is_named(self, store: Store) -> None:
        take(store)
        with pytest.raises(LeaseHeld, match=r"a sync.*elsewhere"):
            take(store, nonce="n2", now=NOW + TTL - timedelta(seconds=1))

    def test_asking_again_with_the_same_nonce_gives_the_same_lease(self, store: Store) -> None:
        first = take(store)
        assert take(store, now=NOW + timedelta(seconds=1)).same(first)

    def test_an_expired_lease_is_taken_over_with_a_larger_fence(self, store: Store) -> None:
        old = take(store)
        new = take(store, nonce="n2", now=NOW + TTL)
        assert new.fence > old.fence
        assert new.same(store.read(STREAM).lease)

    def test_a_late_write_under_an_old_lease_is_fenced_off(self, store: Store) -> None:
        old = take(store)
        store.write(mark(number=1), expected=0, lease=old)
        take(store, nonce="n2", now=NOW + TTL)
        with pytest.raises(LeaseLost):
            store.write(mark(number=2), expected=1, lease=old, events=[event(2)])
        assert store.read(STREAM).watermark == mark(number=1)
        assert store.history(STREAM) == []

    def test_a_lease_with_the_right_fence_and_another_nonce_may_not_write(self, store: Store) -> None:
        lease = take(store)
        with pytest.raises(LeaseLost):
            store.write(mark(), expected=0, lease=replace(lease, nonce="forged"))

    def test_nobody_writes_without_a_lease(self, store: Store) -> None:
        lease = take(store)
        store.release(STREAM, lease)
        with pytest.raises(LeaseLost):
            store.write(mark(), expected=0, lease=lease)

    def test_a_stream_that_was_never_taken_cannot_be_written(self, store: Store) -> None:
        lease = take(store)
        with pytest.raises(LeaseLost):
            store.write(mark(StreamId("shop", "other")), expected=0, lease=lease)

    def test_renewing_moves_the_end_of_the_lease_and_nothing_else(self, store: Store) -> None:
        lease = take(store)
        store.write(mark(number=1), expected=0, lease=lease)
        renewed = store.renew(STREAM, lease, now=NOW + timedelta(seconds=20), ttl=TTL)
        assert renewed.expires_at == NOW + timedelta(seconds=80)
        assert store.read(STREAM) == Stored(STREAM, 1, mark(number=1), renewed)
        with pytest.raises(LeaseHeld):
            take(store, nonce="n2", now=NOW + TTL)
        store.write(mark(number=2), expected=1, lease=lease)

    def test_a_lease_that_was_taken_over_cannot_be_renewed(self, store: Store) -> None:
        old = take(store)
        new = take(store, nonce="n2", now=NOW + TTL)
        with pytest.raises(LeaseLost):
            store.renew(STREAM, old, now=NOW + TTL, ttl=TTL)
        assert new == store.read(STREAM).lease

    def test_releasing_frees_the_stream_and_keeps_what_was_written(self, store: Store) -> None:
        lease = take(store)
        store.write(mark(number=1), expected=0, lease=lease, events=[event(1)])
        store.release(STREAM, lease)
        store.release(STREAM, lease)
        assert store.read(STREAM) == Stored(STREAM, 1, mark(number=1), None)
        assert take(store, nonce="n2").fence > lease.fence

    def test_releasing_a_lease_that_was_taken_over_does_nothing(self, store: Store) -> None:
        old = take(store)
        new = take(store, nonce="n2", now=NOW + TTL)
        store.release(STREAM, old)
        assert store.read(STREAM).lease == new

    def test_a_dead_holder_loses_its_lease_at_once(self, store: Store) -> None:
        dead = holder_that_died()
        old = store.acquire(STREAM, dead, now=NOW, ttl=TTL, nonce="n1")
        new = store.acquire(STREAM, this_process("the next sync"), now=NOW, ttl=TTL, nonce="n2")
        assert new.fence > old.fence

    def test_a_living_holder_on_this_machine_keeps_its_lease(self, store: Store) -> None:
        store.acquire(STREAM, this_process("one"), now=NOW, ttl=TTL, nonce="n1")
        with pytest.raises(LeaseHeld):
            store.acquire(STREAM, this_process("two"), now=NOW, ttl=TTL, nonce="n2")

    def test_one_of_many_racing_threads_gets_the_lease(self, store: Store, opener: Opener) -> None:
        start = threading.Barrier(WRITERS)
        with ThreadPoolExecutor(WRITERS) as pool:
            work = [pool.submit(_try_to_take, opener, f"n{i}", start.wait) for i in range(WRITERS)]
            won = [item.result() for item in work]
        [lease] = [lease for lease in won if lease is not None]
        assert store.read(STREAM).lease == lease

    def test_one_of_many_racing_processes_gets_the_lease(self, store: Store, opener: Opener) -> None:
        won = _in_processes(_try_to_take, [(opener, f"n{i}") for i in range(WRITERS)])
        [lease] = [lease for lease in won if lease is not None]
        assert store.read(STREAM).lease == lease

    def test_one_of_many_takes_over_an_expired_lease(self, store: Store, opener: Opener) -> None:
        old = take(store, now=NOW - 2 * TTL)
        start = threading.Barrier(WRITERS)
        with ThreadPoolExecutor(WRITERS) as pool:
            work = [pool.submit(_try_to_take, opener, f"m{i}", start.wait) for i in range(WRITERS)]
            won = [item.result() for item in work]
        [lease] = [lease for lease in won if lease is not None]
        assert lease.fence == next_fence(old.fence, NOW)

    def test_a_heartbeat_keeps_the_lease_beyond_its_time(self, store: Store, opener: Opener) -> None:
        ttl = timedelta(seconds=1.5)
        me = this_process("a sync")
        holding = hold(store, STREAM, holder=me, clock=_clock, nonce="a", ttl=ttl)
        with closing(opener()) as rival, holding as held:
            its_time = held.lease.expires_at
            _wait_until(lambda: _end_of_lease(rival) > its_time)
            with pytest.raises(LeaseHeld):
                rival.acquire(STREAM, _LIVING, now=its_time, ttl=ttl, nonce="b")
        assert store.read(STREAM).lease is None

    # --- History ---------------------------------------------------------------

    def test_history_is_in_order_and_a_limit_keeps_the_newest(self, store: Store) -> None:
        lease = take(store)
        numbers = count(1)
        for version in range(5):
            events = [event(next(numbers)) for _ in range(version % 3)]
            store.write(mark(), expected=version, lease=lease, events=events)
        assert _numbers(store.history(STREAM)) == [1, 2, 3, 4]
        assert _numbers(store.history(STREAM, limit=3)) == [2, 3, 4]
        assert _numbers(store.history(STREAM, limit=9)) == [1, 2, 3, 4]
        assert store.history(STREAM, limit=0) == []

    def test_history_gives_events_back_as_they_were(self, store: Store) -> None:
        lease = take(store)
        said = Event("manual", NOW, "run-1", {"reason": 'größe "🛒" \\ \n', "n": 2**70, "list": [1, None]})
        store.write(mark(), expected=0, lease=lease, events=[said])
        assert store.history(STREAM) == [said]

    def test_every_stream_has_a_history_of_its_own(self, store: Store) -> None:
        for number, name in enumerate(ODD_NAMES):
            stream = StreamId("shop", name)
            lease = take(store, stream)
            store.write(mark(stream), expected=0, lease=lease, events=[event(number)])
        for number, name in enumerate(ODD_NAMES):
            assert _numbers(store.history(StreamId("shop", name))) == [number]

    # --- Listing ---------------------------------------------------------------

    def test_streams_with_odd_names_are_kept_apart_and_listed_in_order(self, store: Store) -> None:
        streams = [StreamId(*pair) for name in ODD_NAMES for pair in ((name, "t"), ("p", name))]
        for number, stream in enumerate(streams):
            store.write(mark(stream, number), expected=0, lease=take(store, stream))
        listing = store.streams()
        assert listing.damaged == ()
        assert [stored.stream for stored in listing.streams] == sorted(streams)
        for number, stream in enumerate(streams):
            assert store.read(stream).watermark == mark(stream, number)

    def test_a_listing_can_be_limited_to_a_pipeline(self, store: Store) -> None:
        for pipeline in ("shop", "Shop", "shop ", "shopping", "sh~op"):
            take(store, StreamId(pipeline, "orders"))
        assert [stored.stream.pipeline for stored in store.streams("shop").streams] == ["shop"]

    def test_a_thousand_streams_are_listed_within_a_second(self, store: Store) -> None:
        def write(number: int) -> None:
            stream = StreamId("shop", f"table_{number:04}")
            store.write(mark(stream, number), expected=0, lease=take(store, stream))

        with ThreadPoolExecutor(8) as pool:
            _ = list(pool.map(write, range(1000)))
        taken: list[float] = []

        def listed_in_time() -> bool:
            began = time.perf_counter()
            assert len(store.streams().streams) == 1000
            taken.append(time.perf_counter() - began)
            return taken[-1] < 1.0

        _wait_until(listed_in_time)  # a machine that does something else meanwhile says nothing about it

    # --- Damage ----------------------------------------------------------------

    def test_a_damaged_record_is_named_and_never_believed(self, store: Store, damage: Damage) -> None:
        lease = take(store)
        store.write(mark(number=1), expected=0, lease=lease)
        damage(STREAM)
        attempts: list[Callable[[], object]] = [
            lambda: store.read(STREAM),
            lambda: take(store, now=NOW + 2 * TTL),
            lambda: store.write(mark(number=2), expected=1, lease=lease),
        ]
        for attempt in attempts:
            with pytest.raises(DamagedRecord) as raised:
                attempt()
            assert "orders" in (raised.value.where or "")
            assert raised.value.hint

    def test_a_listing_names_damaged_records_beside_the_sound_ones(
        self, store: Store, damage: Damage
    ) -> None:
        other = StreamId("shop", "customers")
        for stream in (STREAM, other):
            store.write(mark(stream), expected=0, lease=take(store, stream))
        damage(STREAM)
        for listing in (store.streams(), store.streams("shop")):
            assert [stored.stream for stored in listing.streams] == [other]
            [found] = listing.damaged
            assert "orders" in found.where
            assert found.problem

    def test_a_damaged_record_can_be_set_aside_and_the_stream_begins_again(
        self, store: Store, damage: Damage
    ) -> None:
        old = take(store)
        store.write(mark(number=1), expected=0, lease=old, events=[event(1)])
        store.release(STREAM, old)  # so that the event has left for the history
        damage(STREAM)
        assert store.set_aside(STREAM)
        assert store.read(STREAM) == Stored(STREAM)
        assert store.streams().damaged == ()
        new = take(store, nonce="n2")
        assert new.fence > old.fence
        with pytest.raises(LeaseLost):
            store.write(mark(number=2), expected=0, lease=old)
        store.write(mark(number=3), expected=0, lease=new, events=[event(3)])
        assert _numbers(store.history(STREAM)) == [1, 3]

    def test_setting_aside_never_overwrites_what_was_set_aside_before(
        self, store: Store, damage: Damage
    ) -> None:
        places = set()
        for number in range(3):
            take(store, nonce=f"n{number}")
            damage(STREAM)
            places.add(store.set_aside(STREAM))
        assert len(places) == 3

    def test_a_sound_record_is_not_set_aside(self, store: Store) -> None:
        store.write(mark(number=1), expected=0, lease=take(store))
        with pytest.raises(StateError, match="not damaged"):
            store.set_aside(STREAM)
        assert store.read(STREAM).watermark == mark(number=1)

    # --- Size ------------------------------------------------------------------

    def test_state_stays_small_however_much_has_passed(self, store: Store) -> None:
        lease = take(store)
        passed = _after_many_segments(10_000)
        store.write(passed, expected=0, lease=lease)
        read = store.read(STREAM).watermark
        assert read == passed
        assert len(json.dumps(to_json(passed))) < 20_000


# --- Holders -----------------------------------------------------------------


def holder_that_died() -> Holder:
    """A process of this machine that has ended."""
    code = (
        "import dataclasses, json\n"
        "from tidegate.state.process import this_process\n"
        "print(json.dumps(dataclasses.asdict(this_process('a sync that died'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    return Holder(**json.loads(done.stdout))


def _clock() -> datetime:
    return datetime.now(UTC)


def _wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.05)


def _end_of_lease(store: Store) -> datetime:
    lease = store.read(STREAM).lease
    assert lease is not None
    return lease.expires_at


# --- Work for threads and processes ------------------------------------------


def _count_up(opener: Opener, lease: Lease, times: int, start: Callable[[], object]) -> None:
    with closing(opener()) as store:
        store.read(STREAM)
        start()
        for _ in range(times):
            while not _counted_one_more(store, lease):
                pass


def _counted_one_more(store: Store, lease: Lease) -> bool:
    stored = store.read(STREAM)
    number = (stored.watermark.runs if stored.watermark else 0) + 1
    try:
        store.write(mark(number=number), expected=stored.version, lease=lease, events=[event(number)])
    except Conflict:
        return False
    return True


def _demand_all_counted(store: Store, total: int) -> None:
    stored = store.read(STREAM)
    assert stored.version == total
    assert stored.watermark == mark(number=total)
    assert _numbers(store.history(STREAM)) == list(range(1, total + 1))


def _try_to_take(opener: Opener, nonce: str, start: Callable[[], object]) -> Lease | None:
    with closing(opener()) as store:
        start()
        try:
            return take(store, nonce=nonce)
        except LeaseHeld:
            return None


def _read_until(opener: Opener, done: threading.Event) -> int:
    """Read until told to stop; how often."""
    with closing(opener()) as store:
        for times in count(1):
            finished = done.is_set()
            stored = store.read(STREAM)
            if stored.watermark is not None:
                assert stored.watermark.runs == stored.watermark.extracted.rows_total == stored.version
                assert len(stored.watermark.last_error or "") == 997 * (stored.version % 40)
            numbers = _numbers(store.history(STREAM))
            assert numbers == list(range(1, len(numbers) + 1))
            assert len(numbers) >= stored.version
            if finished:
                return times
    raise AssertionError("unreachable")


def _numbers(events: Sequence[Event]) -> list[int]:
    return [item.data["number"] for item in events]


_start_together: Any = None


def _remember_barrier(barrier: Any) -> None:
    global _start_together  # noqa: PLW0603 - how a pool's worker gets what cannot travel with a task
    _start_together = barrier


def _once_all_are_there(work: Callable[..., T], arguments: tuple[object, ...]) -> T:
    result = work(*arguments, _start_together.wait)
    _start_together.wait()  # nobody leaves early: a winner that is gone would count as dead
    return result


_DRIVERS = ("boto3", "psycopg", "pymysql")
"""What stores import when they are first used. One that is not installed is passed over."""


def process_context() -> ForkServerContext:
    """Processes that start at once, since the server they are forked from has everything imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *_DRIVERS])
    return context


def _in_processes(work: Callable[..., T], arguments: Sequence[tuple[object, ...]]) -> list[T]:
    """Do the work in as many processes as there are arguments, all at the same moment."""
    context = process_context()
    barrier = context.Barrier(len(arguments))
    with context.Pool(len(arguments), _remember_barrier, (barrier,)) as pool:
        tasks = [pool.apply_async(_once_all_are_there, (work, item)) for item in arguments]
        results = [task.get(timeout=600) for task in tasks]
        pool.close()
        pool.join()
    return results


# --- Many segments -----------------------------------------------------------


@cache
def _after_many_segments(number: int) -> Watermark:
    """A watermark that has seen this many segments extracted and loaded, a hundred to a run."""
    passed = mark()
    for _ in range(number // 100):
        passed = _planned(passed)
        for _ in range(100):
            passed = _extracted(passed)
            passed, _ = transitions.loaded(passed, {segment.key for segment in passed.pending}, NOW)
        passed, _ = transitions.finish(passed, NOW)
    return passed


def one_run(watermark: Watermark) -> Watermark:
    """The watermark in the middle of a run, with one segment pending."""
    return _extracted(_planned(watermark))


def _planned(watermark: Watermark) -> Watermark:
    """A run over the next hundred ids, cut into as many chunks."""
    position = watermark.extracted.position
    low = int(str(position)) if position else 0
    window = Window(position, Position.of(low + 100))
    schema = ("f" * 16, {"columns": [["id", ["int64", None, None, None], False, "bigint"]], "key": ["id"]})
    planned, _ = transitions.plan(
        watermark,
        run_id=f"run-{low}",
        kind=RunKind.INCREMENTAL,
        window=window,
        now=NOW,
        cursor=("id",),
        schema=schema,
    )
    return transitions.begin_round(planned, window, [Position.of(low + step) for step in range(1, 100)], NOW)


def _extracted(passed: Watermark) -> Watermark:
    """One more chunk of the run, staged and proved."""
    run = passed.open_run
    assert run is not None
    assert run.round is not None
    chunk = run.round.chunks[run.round.done]
    segment = Segment(
        key=f"shop/orders/{run.id}/{chunk.number:06}-{'e' * 32}.parquet",
        rows=50_000,
        bytes=10_000_000,
        etag="e" * 32,
        checksum="c" * 64,
        run=run.number,
        chunk=chunk.number,
        window=chunk.window,
        schema="f" * 16,
    )
    receipt = Receipt(run.id, chunk.number, "a1", chunk.window, segment.rows, None, None, segment)
    return transitions.advance(passed, [receipt], NOW)

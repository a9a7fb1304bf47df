"""Holding a stream: heartbeat, lost leases, lost answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tidegate.core.errors import (
    Conflict,
    ConnectError,
    LeaseHeld,
    LeaseLost,
    OutcomeUnknown,
    StateError,
    TidegateError,
)
from tidegate.core.leases import Holder, Lease
from tidegate.core.watermark import Event, StreamId, Watermark
from tidegate.state.hold import TTL, HeldStream, hold
from tidegate.state.local import LocalStore
from tidegate.state.process import this_process
from tidegate.testing.stores import STREAM, event, mark

ME = this_process("this sync")
RIVAL = Holder(host="elsewhere", boot_id="b", pid_namespace="n", pid=1, process_start="s", command="a rival")
SHORT = timedelta(milliseconds=120)
DAY = timedelta(days=1)


class Faulty(LocalStore):
    """A real store whose answers get lost when a test says so."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.before_write: list[Callable[[], None]] = []
        self.after_write: list[Callable[[], None]] = []
        self.unreachable: set[str] = set()
        self.unanswered = 0
        """So many of the next looks are in vain."""
        self.writes = 0
        self.renewals = 0

    def acquire(self, stream: StreamId, holder: Holder, **how: Any) -> Lease:
        lease = super().acquire(stream, holder, **how)
        self._answer("acquire")
        return lease

    def renew(self, stream: StreamId, lease: Lease, **how: Any) -> Lease:
        self.renewals += 1
        self._answer("renew")
        return super().renew(stream, lease, **how)

    def release(self, stream: StreamId, lease: Lease) -> None:
        self._answer("release")
        super().release(stream, lease)

    def read(self, stream: StreamId) -> Any:
        self._answer("read")
        if self.unanswered:
            self.unanswered -= 1
            raise ConnectError("no answer this time")
        return super().read(stream)

    def write(
        self, watermark: Watermark, *, expected: int, lease: Lease, events: Sequence[Event] = ()
    ) -> int:
        self.writes += 1
        if self.before_write:
            self.before_write.pop(0)()
        version = super().write(watermark, expected=expected, lease=lease, events=events)
        if self.after_write:
            self.after_write.pop(0)()
        return version

    def _answer(self, question: str) -> None:
        if question in self.unreachable:
            raise ConnectError(f"no answer to {question}")


def lose_answer() -> None:
    raise OutcomeUnknown("the answer was lost")


def pass_on() -> None:
    """This time nothing happens."""


def clock() -> datetime:
    return datetime.now(UTC)


def ticking() -> Callable[[], datetime]:
    """A clock that moves by a millisecond whenever somebody looks: it stands still when the machine does."""
    looks = count()
    return lambda: datetime(2025, 3, 1, tzinfo=UTC) + timedelta(milliseconds=next(looks))


@pytest.fixture
def store(tmp_path: Path) -> Faulty:
    return Faulty(tmp_path)


def holding(
    store: LocalStore,
    *,
    nonce: str = "mine",
    ttl: timedelta = TTL,
    clock: Callable[[], datetime] = clock,
) -> AbstractContextManager[HeldStream]:
    return hold(store, STREAM, holder=ME, clock=clock, nonce=nonce, ttl=ttl)


@pytest.fixture
def held(store: Faulty) -> Iterator[HeldStream]:
    with holding(store) as held:
        yield held


def take_over(store: LocalStore) -> Lease:
    """A rival whose clock is a day ahead finds the lease expired."""
    return LocalStore.acquire(store, STREAM, RIVAL, now=clock() + DAY, ttl=TTL, nonce="rival")


def numbers(store: LocalStore) -> list[int]:
    return [item.data["number"] for item in LocalStore.history(store, STREAM)]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# --- Holding -----------------------------------------------------------------


def test_a_new_stream_has_no_watermark_until_one_is_committed(held: HeldStream, store: Faulty) -> None:
    assert held.stream == STREAM
    assert held.watermark is None
    held.commit(mark(number=1), [event(1)])
    held.commit(mark(number=2), [event(2)])
    assert held.watermark == mark(number=2)
    assert store.read(STREAM).version == 2
    assert numbers(store) == [1, 2]


def test_the_next_holder_goes_on_from_what_was_committed(store: Faulty) -> None:
    with holding(store, nonce="a") as held:
        held.commit(mark(number=1))
    with holding(store, nonce="b") as held:
        assert held.watermark == mark(number=1)
        held.commit(mark(number=2))
    assert store.read(STREAM).version == 2


def test_a_held_stream_cannot_be_held_again(held: HeldStream, store: Faulty) -> None:
    with pytest.raises(LeaseHeld, match="this sync"), holding(store, nonce="second"):
        pass


def test_the_lease_is_given_back_also_when_the_work_failed(store: Faulty) -> None:
    with pytest.raises(ZeroDivisionError), holding(store):
        raise ZeroDivisionError
    assert store.read(STREAM).lease is None


def test_the_lease_is_given_back_when_the_stream_cannot_be_read(store: Faulty) -> None:
    store.unreachable.add("read")
    with pytest.raises(ConnectError), holding(store):
        pass
    store.unreachable.clear()
    assert store.read(STREAM).lease is None


def test_a_lease_whose_grant_got_no_answer_is_recognised(store: Faulty) -> None:
    class Once(Faulty):
        def acquire(self, stream: StreamId, holder: Holder, **how: Any) -> Lease:
            lease = super().acquire(stream, holder, **how)
            if not self.writes:
                self.writes += 1
                lose_answer()
            return lease

    with holding(Once(store._path)) as held:  # noqa: SLF001 - the same folder
        assert held.lease.same(LocalStore.read(store, STREAM).lease)
        held.commit(mark(number=1))


def test_a_lease_that_could_not_be_given_back_does_not_keep_its_own_process_out(store: Faulty) -> None:
    with holding(store, nonce="a") as held:
        held.commit(mark(number=1))
        store.unreachable.add("release")
    assert store.read(STREAM).lease is not None
    store.unreachable.clear()
    with holding(store, nonce="b") as held:
        assert held.watermark == mark(number=1)


# --- Heartbeat ---------------------------------------------------------------


def test_a_heartbeat_renews_the_lease_while_the_work_goes_on(store: Faulty) -> None:
    with holding(store, ttl=SHORT) as held:
        first = held.lease.expires_at
        wait_until(lambda: held.lease.expires_at > first + SHORT)
        held.check()
        held.commit(mark(number=1))
    assert store.read(STREAM).lease is None


def test_the_heartbeat_ends_with_the_hold(store: Faulty) -> None:
    with holding(store, ttl=SHORT):
        pass
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("lease of")]


def test_a_lease_taken_over_is_noticed_by_the_heartbeat(store: Faulty) -> None:
    with holding(store, ttl=SHORT) as held:
        rival = take_over(store)
        wait_until(lambda: held.lost)
        with pytest.raises(LeaseLost, match="a rival"):
            held.check()
        with pytest.raises(LeaseLost, match="a rival"):
            held.commit(mark(number=1), [event(1)])
        assert store.writes == 0
    assert store.read(STREAM).lease == rival  # leaving took nothing from the new holder


def test_a_lease_taken_over_is_noticed_by_the_commit_at_the_latest(held: HeldStream, store: Faulty) -> None:
    take_over(store)
    with pytest.raises(LeaseLost):
        held.commit(mark(number=1), [event(1)])
    assert held.watermark is None
    assert store.read(STREAM).version == 0
    with pytest.raises(LeaseLost):
        held.check()


def test_a_store_that_is_away_for_a_while_costs_nothing(store: Faulty) -> None:
    with holding(store, ttl=timedelta(seconds=3), clock=ticking()) as held:
        first = held.lease.expires_at
        store.unreachable.add("renew")
        wait_until(lambda: store.renewals >= 2)
        store.unreachable.clear()
        wait_until(lambda: held.lease.expires_at > first)
        held.commit(mark(number=1))


def test_a_store_that_stays_away_until_the_lease_has_expired_costs_the_lease(store: Faulty) -> None:
    with holding(store, ttl=SHORT) as held:
        store.unreachable.add("renew")
        wait_until(lambda: held.lost)
        assert clock() >= held.lease.expires_at
        with pytest.raises(LeaseLost, match="expired before it could be renewed"):
            held.commit(mark(number=1))
        store.unreachable.clear()


def test_even_a_defect_in_the_store_does_not_silence_the_heartbeat(
    store: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(*_: object, **__: object) -> Lease:
        raise RuntimeError("a defect")

    with holding(store, ttl=SHORT) as held:
        with monkeypatch.context() as patch:
            patch.setattr(store, "renew", defect)
            wait_until(lambda: held.lost)
        with pytest.raises(LeaseLost, match="a defect"):
            held.check()


def test_after_a_long_sleep_of_the_machine_the_lease_is_renewed_if_nobody_took_it(store: Faulty) -> None:
    asleep = [timedelta(0)]
    with holding(store, clock=lambda: clock() + asleep[0]) as held:
        asleep[0] = timedelta(hours=8)
        held.check()
        assert held.lease.expires_at > clock() + timedelta(hours=8)
        held.commit(mark(number=1))


def test_heartbeat_and_commit_take_turns(tmp_path: Path) -> None:
    class Jealous(LocalStore):
        """Notices when two calls meet."""

        inside = 0
        met = False

        def _alone(self, work: Callable[[], Any]) -> Any:
            self.met = self.met or self.inside > 0
            self.inside += 1
            time.sleep(0.002)
            try:
                return work()
            finally:
                self.inside -= 1

        def renew(self, *what: Any, **how: Any) -> Lease:
            lease: Lease = self._alone(lambda: LocalStore.renew(self, *what, **how))
            return lease

        def write(self, *what: Any, **how: Any) -> int:
            version: int = self._alone(lambda: LocalStore.write(self, *what, **how))
            return version

    store = Jealous(tmp_path)
    with holding(store, ttl=timedelta(milliseconds=30)) as held:
        for number in range(1, 60):
            held.renew()  # in case the machine is so busy that the lease expired meanwhile
            held.commit(mark(number=number))
    assert not store.met


# --- Lost answers ------------------------------------------------------------


def test_a_commit_whose_answer_was_lost_counts_if_it_landed(held: HeldStream, store: Faulty) -> None:
    store.after_write = [lose_answer]
    held.commit(mark(number=1), [event(1)])
    assert store.writes == 1
    held.commit(mark(number=2), [event(2)])
    assert numbers(store) == [1, 2]
    assert store.read(STREAM).version == 2


def test_a_commit_whose_answer_was_lost_is_repeated_if_it_did_not_land(
    held: HeldStream, store: Faulty
) -> None:
    store.before_write = [lose_answer]
    held.commit(mark(number=1), [event(1)])
    assert store.writes == 2
    assert numbers(store) == [1]
    assert held.watermark == mark(number=1)


def test_a_commit_that_lands_late_counts_once(held: HeldStream, store: Faulty) -> None:
    """The first attempt is still on its way while we look, and arrives just before the second."""

    def arrive_late() -> None:
        stored = store.read(STREAM)
        assert stored.lease is not None
        LocalStore.write(store, mark(number=1), expected=0, lease=stored.lease, events=[event(1)])

    store.before_write = [lose_answer, arrive_late]
    held.commit(mark(number=1), [event(1)])
    held.commit(mark(number=2), [event(2)])
    assert numbers(store) == [1, 2]


def test_a_commit_that_never_lands_is_an_error_after_the_second_attempt(
    held: HeldStream, store: Faulty
) -> None:
    store.before_write = [lose_answer, lose_answer]
    with pytest.raises(OutcomeUnknown):
        held.commit(mark(number=1), [event(1)])
    assert held.watermark is None
    held.commit(mark(number=2), [event(2)])
    assert numbers(store) == [2]


def test_a_second_lost_answer_is_resolved_too(held: HeldStream, store: Faulty) -> None:
    store.before_write = [lose_answer, pass_on]
    store.after_write = [lose_answer]
    held.commit(mark(number=1), [event(1)])
    assert store.writes == 2
    assert numbers(store) == [1]


def test_a_lost_answer_under_a_lost_lease_is_no_success(held: HeldStream, store: Faulty) -> None:
    def taken_over() -> None:
        take_over(store)
        lose_answer()

    store.before_write = [taken_over]
    with pytest.raises(LeaseLost):
        held.commit(mark(number=1))
    assert store.writes == 1


def test_a_rival_who_wrote_the_same_does_not_make_our_commit_land(held: HeldStream, store: Faulty) -> None:
    def rival_writes() -> None:
        LocalStore.write(store, mark(number=1), expected=0, lease=take_over(store))
        lose_answer()

    store.before_write = [rival_writes]
    with pytest.raises(LeaseLost):
        held.commit(mark(number=1))


def test_what_somebody_else_wrote_is_not_taken_for_our_own(held: HeldStream, store: Faulty) -> None:
    def forge() -> None:
        stored = store.read(STREAM)
        assert stored.lease is not None
        LocalStore.write(store, mark(number=99), expected=0, lease=stored.lease)
        lose_answer()

    store.before_write = [forge]
    with pytest.raises(Conflict):
        held.commit(mark(number=1))
    assert held.watermark is None


def test_the_store_is_asked_until_it_answers(store: Faulty) -> None:
    with holding(store, ttl=timedelta(seconds=2), clock=ticking()) as held:

        def away_for_a_moment() -> None:
            store.unanswered = 2
            lose_answer()

        store.after_write = [away_for_a_moment]
        held.commit(mark(number=1), [event(1)])
        assert held.watermark == mark(number=1)
        assert store.unanswered == 0


def test_a_store_that_never_answers_leaves_the_outcome_unknown(store: Faulty) -> None:
    with ExitStack() as stack:
        held = stack.enter_context(holding(store, ttl=timedelta(seconds=0.5)))
        stack.callback(store.unreachable.clear)

        def gone() -> None:
            store.unreachable.update({"read", "renew"})
            lose_answer()

        store.after_write = [gone]
        with pytest.raises(OutcomeUnknown):
            held.commit(mark(number=1))
        assert held.watermark is None


@pytest.mark.parametrize("error", [Conflict("x"), StateError("disk full"), ConnectError("down")])
def test_a_refused_commit_changes_nothing_and_is_not_repeated(
    held: HeldStream, store: Faulty, error: TidegateError
) -> None:
    def refuse() -> None:
        raise error

    store.before_write = [refuse]
    with pytest.raises(type(error)):
        held.commit(mark(number=1))
    assert store.writes == 1
    assert held.watermark is None
    held.commit(mark(number=2))

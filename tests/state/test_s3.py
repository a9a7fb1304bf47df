"""The S3 store: answers that are lost, servers that ignore conditions, and what it costs."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest
import yaml
from botocore.awsrequest import AWSResponse

from tests import servers
from tests.lost_answers import losing_answer, watching
from tests.servers import S3Server
from tests.state.careless import careless_server
from tests.state.damaged_records import broken_bytes
from tests.test_documents import blocks
from tests.toxiproxy import Proxied, Toxiproxy
from tidegate.config.connection_models import S3State
from tidegate.core.errors import (
    ConfigError,
    Conflict,
    ConnectError,
    DamagedRecord,
    LeaseLost,
    LoginRefused,
    OutcomeUnknown,
    StateError,
)
from tidegate.core.watermark import StreamId
from tidegate.s3 import S3Place
from tidegate.state.contract import Stored
from tidegate.state.hold import hold
from tidegate.state.process import this_process
from tidegate.state.s3 import S3Store
from tidegate.state.s3_objects import ANSWER_SECONDS
from tidegate.testing.stores import NOW, STREAM, TTL, event, mark, take

OTHER = StreamId("shop", "customers")
PREFIXES = (f"state-{number}" for number in count())


def place_in(server: S3Server, prefix: str = "state") -> S3Place:
    return S3Place.of(S3State.model_validate({**server.config, "prefix": prefix}))


def client_of(place: S3Place) -> Any:
    return place.client(answer_seconds=ANSWER_SECONDS)


@pytest.fixture
def store(fresh_bucket: S3Server) -> S3Store:
    return S3Store(place_in(fresh_bucket))


@pytest.fixture
def proxied(fresh_bucket: S3Server, toxiproxy: Toxiproxy) -> Iterator[Proxied]:
    with toxiproxy.before(fresh_bucket.port) as proxied:
        yield proxied


def numbers(store: S3Store, stream: StreamId = STREAM) -> list[int]:
    return [item.data["number"] for item in store.history(stream)]


# --- Lost answers ------------------------------------------------------------


def live_through(store: S3Store) -> None:
    """Every kind of request that the store makes, and what must come of it."""
    lease = take(store)
    assert store.write(mark(number=1), expected=0, lease=lease, events=[event(1)]) == 1
    lease = store.renew(STREAM, lease, now=NOW, ttl=TTL)
    more = [event(number) for number in range(2, 103)]
    assert store.write(mark(number=2), expected=1, lease=lease, events=more) == 2
    assert store.write(mark(number=3), expected=2, lease=lease, events=[event(103)]) == 3
    assert store.read(STREAM) == Stored(STREAM, 3, mark(number=3), lease)
    store.release(STREAM, lease)
    assert store.streams().streams == (Stored(STREAM, 3, mark(number=3), None),)
    assert numbers(store) == list(range(1, 104))
    again = take(store, nonce="n2")
    assert again.fence > lease.fence
    with pytest.raises(LeaseLost):
        store.write(mark(number=9), expected=3, lease=lease, events=[event(9)])
    with pytest.raises(Conflict):
        store.write(mark(number=9), expected=2, lease=again, events=[event(9)])


KINDS = {"PUT conditions", "GET watermarks", "PUT watermarks", "PUT history", "GET history", "GET list"}


def kind(request: str) -> str:
    method, _, url = request.partition(" ")
    if "list-type" in url:
        return "GET list"
    return f"{method} {url.split('/state-')[1].split('/')[1]}"


@pytest.mark.parametrize("heard", [True, False], ids=["heard by the server", "not heard"])
def test_no_request_whose_answer_is_lost_loses_or_doubles_anything(
    fresh_bucket: S3Server,
    proxied: Proxied,
    heard: bool,  # noqa: FBT001
) -> None:
    seen = set()
    for number in count(1):
        place = place_in(fresh_bucket.behind(proxied.port), next(PREFIXES))
        with losing_answer(proxied, client_of(place), number, heard=heard) as requests:
            live_through(S3Store(place))
        if not requests.broken:
            break
        seen.add(kind(requests.broken[0]))
    assert seen == KINDS


def test_setting_aside_survives_lost_answers(fresh_bucket: S3Server, proxied: Proxied) -> None:
    kinds: Counter[str] = Counter()
    for number in count(1):
        place = place_in(fresh_bucket.behind(proxied.port), next(PREFIXES))
        store = S3Store(place)
        lease = take(store)
        store.write(mark(number=1), expected=0, lease=lease, events=[event(1)])
        store.release(STREAM, lease)
        spoil(fresh_bucket, place.key("watermarks/shop~orders.json"))
        [past] = fresh_bucket.keys(place.key("history/"))
        spoil(fresh_bucket, past)
        with losing_answer(proxied, client_of(place), number) as requests:
            store.set_aside(STREAM)
            store.set_aside(STREAM)
        assert store.read(STREAM) == Stored(STREAM)
        assert store.history(STREAM) == []
        if not requests.broken:
            break
        kinds[kind(requests.broken[0])] += 1
    assert {"DELETE history", "PUT set-aside"} <= set(kinds)


def spoil(bucket: S3Server, key: str) -> None:
    bucket.client().put_object(Bucket=bucket.bucket, Key=key, Body=b"no record")


def test_a_held_stream_finds_out_what_became_of_its_commit(fresh_bucket: S3Server, proxied: Proxied) -> None:
    """Also when asking fails as well: three attempts of the write and three of the look are lost."""
    place = place_in(fresh_bucket.behind(proxied.port))
    store = S3Store(place)
    me = this_process("a sync")
    with hold(store, STREAM, holder=me, clock=lambda: datetime.now(UTC), nonce="a") as held:
        held.commit(mark(number=1), [event(1)])
        with losing_answer(proxied, client_of(place), 1, times=6) as requests:
            held.commit(mark(number=2), [event(2)])
        assert [kind(request.replace("/state/", "/state-/")) for request in requests.broken] == [
            *["PUT watermarks"] * 3,
            *["GET watermarks"] * 3,
        ]
        held.commit(mark(number=3), [event(3)])
    assert store.read(STREAM) == Stored(STREAM, 3, mark(number=3), None)
    assert numbers(store) == [1, 2, 3]


def test_a_write_of_which_nothing_is_heard_has_an_unknown_outcome(
    fresh_bucket: S3Server, proxied: Proxied
) -> None:
    store = S3Store(place_in(fresh_bucket.behind(proxied.port)))
    lease = take(store)
    with proxied.losing_answers(), pytest.raises(OutcomeUnknown) as raised:
        store.write(mark(number=1), expected=0, lease=lease, events=[event(1)])
    assert raised.value.where == f"s3://{fresh_bucket.bucket}/state/watermarks/shop~orders.json"
    assert store.read(STREAM).version == 1
    assert numbers(store) == [1]


# --- Others in between -------------------------------------------------------


@contextmanager
def meanwhile(
    fresh_bucket: S3Server, proxied: Proxied, *, heard: bool, writes: int
) -> Iterator[tuple[S3Store, S3Store]]:
    """A store whose next write is not answered, and another that takes over before it can try again."""
    behind = place_in(fresh_bucket.behind(proxied.port))
    mine, theirs = S3Store(behind), S3Store(place_in(fresh_bucket))

    def take_over(request: str) -> None:
        if len(requests.sent) == 2 and request.startswith("PUT"):
            lease = take(theirs, nonce="theirs", now=NOW + TTL)
            for _ in range(writes):
                theirs.renew(STREAM, lease, now=NOW + TTL, ttl=TTL)

    yield_to = losing_answer(proxied, client_of(behind), 1, heard=heard)
    lease = take(mine)
    mine.write(mark(number=1), expected=0, lease=lease)
    with yield_to, watching(client_of(behind), take_over) as requests:
        yield mine, theirs
    assert len(requests.sent) > 2
    with pytest.raises(LeaseLost):
        mine.write(mark(number=9), expected=2, lease=lease)


def test_a_write_is_known_to_have_landed_although_another_has_taken_over(
    fresh_bucket: S3Server, proxied: Proxied
) -> None:
    with meanwhile(fresh_bucket, proxied, heard=True, writes=2) as (mine, theirs):
        lease = theirs.read(STREAM).lease
        assert lease is not None
        assert mine.write(mark(number=2), expected=1, lease=lease, events=[event(2)]) == 2
    assert theirs.read(STREAM).watermark == mark(number=2)
    assert numbers(theirs) == [2]


def test_a_write_is_known_not_to_have_landed_when_another_has_taken_over(
    fresh_bucket: S3Server, proxied: Proxied
) -> None:
    with meanwhile(fresh_bucket, proxied, heard=False, writes=2) as (mine, theirs):
        lease = theirs.read(STREAM).lease
        assert lease is not None
        with pytest.raises(LeaseLost):
            mine.write(mark(number=2), expected=1, lease=lease, events=[event(2)])
    assert theirs.read(STREAM).watermark == mark(number=1)
    assert numbers(theirs) == []


@pytest.mark.parametrize("heard", [True, False])
def test_a_write_that_many_others_have_followed_has_an_unknown_outcome(
    fresh_bucket: S3Server,
    proxied: Proxied,
    heard: bool,  # noqa: FBT001
) -> None:
    with meanwhile(fresh_bucket, proxied, heard=heard, writes=9) as (mine, theirs):
        lease = theirs.read(STREAM).lease
        assert lease is not None
        with pytest.raises(OutcomeUnknown):
            mine.write(mark(number=2), expected=1, lease=lease, events=[event(2)])
    assert theirs.read(STREAM).version == (2 if heard else 1)


def test_a_conflict_with_a_write_under_way_means_another_attempt(
    store: S3Store, fresh_bucket: S3Server
) -> None:
    lease = take(store)
    client = client_of(place_in(fresh_bucket))
    answers = [b"<Error><Code>ConditionalRequestConflict</Code></Error>"]

    def answer(request: Any, **_: Any) -> AWSResponse | None:
        if request.method != "PUT" or not answers:
            return None
        text = answers.pop()
        return AWSResponse(request.url, 409, {"content-length": str(len(text))}, _Body(text))

    client.meta.events.register_first("before-send.s3", answer)
    try:
        assert store.write(mark(number=1), expected=0, lease=lease, events=[event(1)]) == 1
    finally:
        client.meta.events.unregister("before-send.s3", answer)
    assert answers == []
    assert numbers(store) == [1]


class _Body(io.BytesIO):
    def stream(self) -> Iterator[bytes]:
        yield self.read()


# --- Servers that ignore conditions ------------------------------------------


@pytest.mark.parametrize(
    ("heeds", "ignored"), [(None, "If-None-Match: *"), ("If-None-Match", "If-Match: ")], ids=["none", "one"]
)
def test_a_server_that_ignores_conditions_is_refused(heeds: str | None, ignored: str) -> None:
    with careless_server(heeds) as server:
        store = S3Store(place_in(server))
        assert store.read(STREAM) == Stored(STREAM)  # looking does no harm
        with pytest.raises(ConfigError, match=ignored.replace("*", r"\*")) as raised:
            take(store)
    assert "Careless/1.0 answered 200" in raised.value.message
    assert raised.value.hint


# --- What it costs -----------------------------------------------------------


def test_a_stream_with_nothing_new_costs_four_requests(fresh_bucket: S3Server) -> None:
    place = place_in(fresh_bucket)
    me = this_process("a sync")
    for nonce, probing in (("a", 3), ("b", 0)):
        with watching(client_of(place)) as requests:
            store = S3Store(place)
            with hold(store, OTHER, holder=me, clock=lambda: datetime.now(UTC), nonce=nonce):
                pass
        made = [request.split(" ")[0] for request in requests.sent]
        new = ["GET"] if probing else []  # a new stream looks whether there is a history already
        assert made == ["PUT"] * probing + ["GET", *new, "PUT", "GET", "PUT"]


def test_a_commit_costs_one_request_and_history_one_more_for_a_hundred_events(
    store: S3Store, fresh_bucket: S3Server
) -> None:
    lease = take(store)
    [record] = (fresh_bucket.folder / "data" / fresh_bucket.bucket / "state/watermarks").iterdir()
    sizes = []
    with watching(client_of(place_in(fresh_bucket))) as requests:
        for number in range(1, 251):
            store.write(mark(number=number), expected=number - 1, lease=lease, events=[event(number)])
            sizes.append(record.stat().st_size)
        store.release(STREAM, lease)
    assert max(sizes[150:]) < 1.1 * max(sizes[:150])
    assert Counter(request.split("/state/")[1].split("/")[0] for request in requests.sent) == {
        "watermarks": 251,
        "history": 3,
    }
    assert numbers(store) == list(range(1, 251))
    with watching(client_of(place_in(fresh_bucket))) as requests:
        assert [item.data["number"] for item in store.history(STREAM, limit=3)] == [248, 249, 250]
    assert len(requests.sent) == 3  # the record, the list, and the last object in it


def test_a_listing_reads_again_only_what_has_changed(store: S3Store, fresh_bucket: S3Server) -> None:
    for stream in (STREAM, OTHER):
        store.write(mark(stream), expected=0, lease=take(store, stream))
    assert len(store.streams().streams) == 2
    S3Store(place_in(fresh_bucket)).renew(OTHER, take(store, OTHER), now=NOW, ttl=2 * TTL)
    with watching(client_of(place_in(fresh_bucket))) as requests:
        listing = store.streams()
    assert [stored.lease.expires_at for stored in listing.streams if stored.lease] == [
        NOW + 2 * TTL,
        NOW + TTL,
    ]
    assert [request.split("/")[-1].split("?")[0] for request in requests.sent] == [
        fresh_bucket.bucket,
        "shop~customers.json",
    ]


def test_history_goes_on_over_many_pages_of_names(store: S3Store, fresh_bucket: S3Server) -> None:
    lease = take(store)
    store.write(mark(), expected=0, lease=lease, events=[event(1)])
    store.release(STREAM, lease)
    folder = fresh_bucket.folder / "data" / fresh_bucket.bucket / "state/history/shop~orders"
    for number in range(1100):
        (folder / f"000000000000-{number:04}-none-of-ours").write_text("")
    store.write(mark(), expected=1, lease=take(store, nonce="n2"), events=[event(2)])
    assert numbers(S3Store(place_in(fresh_bucket))) == [1, 2]


# --- Damage ------------------------------------------------------------------


def test_every_kind_of_damage_is_found_and_named(store: S3Store, fresh_bucket: S3Server) -> None:
    take(store)
    client, key = fresh_bucket.client(), "state/watermarks/shop~orders.json"
    sound = client.get_object(Bucket=fresh_bucket.bucket, Key=key)["Body"].read()
    assert store.read(STREAM).version == 0
    for name, content in broken_bytes(sound).items():
        if content == sound:
            continue
        client.put_object(Bucket=fresh_bucket.bucket, Key=key, Body=content)
        with pytest.raises(DamagedRecord) as raised:
            store.read(STREAM)
        assert raised.value.where == f"s3://{fresh_bucket.bucket}/{key}", name
        assert len(store.streams().damaged) == 1
    assert client.get_object(Bucket=fresh_bucket.bucket, Key=key)["Body"].read() == content


def test_a_record_under_another_name_is_not_believed(store: S3Store, fresh_bucket: S3Server) -> None:
    take(store)
    client = fresh_bucket.client()
    client.copy_object(
        Bucket=fresh_bucket.bucket,
        Key="state/watermarks/shop~customers.json",
        CopySource={"Bucket": fresh_bucket.bucket, "Key": "state/watermarks/shop~orders.json"},
    )
    with pytest.raises(DamagedRecord, match="record of shop/orders, under another name"):
        store.read(OTHER)
    assert [item.where for item in store.streams().damaged] == [
        f"s3://{fresh_bucket.bucket}/state/watermarks/shop~customers.json"
    ]


def test_an_older_record_put_back_by_hand_loses_no_line_of_history(
    store: S3Store, fresh_bucket: S3Server
) -> None:
    client, key = fresh_bucket.client(), "state/watermarks/shop~orders.json"
    lease = take(store)
    store.write(mark(number=1), expected=0, lease=lease, events=[event(1)])
    store.release(STREAM, lease)
    older = client.get_object(Bucket=fresh_bucket.bucket, Key=key)["Body"].read()
    lease = take(store, nonce="n2")
    store.write(mark(number=2), expected=1, lease=lease, events=[event(2)])
    store.release(STREAM, lease)
    client.put_object(Bucket=fresh_bucket.bucket, Key=key, Body=older)
    lease = take(store, nonce="n3", now=NOW + TTL)
    store.write(mark(number=3), expected=1, lease=lease, events=[event(3)])
    store.release(STREAM, lease)
    assert numbers(store) == [1, 2, 3]


def test_files_of_the_earlier_tool_beside_the_state_are_left_alone(fresh_bucket: S3Server) -> None:
    store = S3Store(place_in(fresh_bucket, "watermarks/v2/"))
    fresh_bucket.client().put_object(
        Bucket=fresh_bucket.bucket, Key="watermarks/v2/settlement.orders.json", Body=b"{}"
    )
    take(store)
    listing = store.streams()
    assert ([stored.stream for stored in listing.streams], listing.damaged) == ([STREAM], ())


# --- What is wrong, in words -------------------------------------------------


def test_who_may_not_get_in_is_told_why(fresh_bucket: S3Server) -> None:
    place = place_in(fresh_bucket)
    stranger = servers.s3_user(fresh_bucket)
    wrong = [
        (replace(place, secret_access_key="wrong"), "SignatureDoesNotMatch"),
        (replace(place, bucket="t-none"), "no bucket `t-none`"),
        (place_in(stranger), "s3:GetObject and s3:ListBucket"),
    ]
    for there, words in wrong:
        with pytest.raises(LoginRefused, match=words) as raised:
            S3Store(there).read(STREAM)
        assert (raised.value.exit_code, bool(raised.value.hint)) == (5, True)
    with pytest.raises(ConnectError) as unreachable:
        S3Store(place_in(fresh_bucket.behind(1))).read(STREAM)
    assert unreachable.value.transient


def test_who_may_only_look_can_look(fresh_bucket: S3Server, store: S3Store) -> None:
    lease = take(store)
    store.write(mark(number=1), expected=0, lease=lease, events=[event(1)])
    reader = servers.s3_user(fresh_bucket)
    fresh_bucket.client().put_bucket_policy(
        Bucket=fresh_bucket.bucket,
        Policy=servers.policy(reader, "s3:GetObject", "s3:ListBucket"),
    )
    looking = S3Store(place_in(reader))
    assert looking.read(STREAM) == Stored(STREAM, 1, mark(number=1), lease)
    assert len(looking.streams().streams) == 1
    assert numbers(looking) == [1]
    with pytest.raises(LoginRefused, match="s3:PutObject"):
        looking.acquire(OTHER, lease.holder, now=NOW, ttl=TTL, nonce="n2")


def test_what_the_guide_says_is_enough(fresh_bucket: S3Server) -> None:
    [config] = blocks("docs/how-to/state-on-s3.md", "yaml")
    [policy] = blocks("docs/how-to/state-on-s3.md", "json")
    written = yaml.safe_load(config)["state"]["default"]
    user = servers.s3_user(fresh_bucket)
    granted = json.loads(policy.replace(written["bucket"], fresh_bucket.bucket))
    for statement in granted["Statement"]:
        statement["Principal"] = {
            "AWS": [user.access_key_id]
        }  # it is the bucket's policy here, not the user's
    fresh_bucket.client().put_bucket_policy(Bucket=fresh_bucket.bucket, Policy=json.dumps(granted))
    live_through(S3Store(S3Place.of(S3State.model_validate({**written, **user.config}))))


def test_a_sound_history_is_not_set_aside(store: S3Store) -> None:
    lease = take(store)
    store.write(mark(), expected=0, lease=lease, events=[event(1)])
    store.release(STREAM, lease)
    with pytest.raises(StateError, match="not damaged"):
        store.set_aside(STREAM)

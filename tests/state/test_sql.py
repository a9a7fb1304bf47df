"""The SQL store: URLs, connections that break, and users who may do little."""

from __future__ import annotations

import sqlite3
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.servers import Server
from tests.state.proxies import Cut, Line, proxied
from tidegate.core.errors import ConfigError, ConnectError, LoginRefused, OutcomeUnknown, StateError
from tidegate.state import databases
from tidegate.state.hold import hold
from tidegate.state.process import this_process
from tidegate.state.rules import next_fence
from tidegate.state.sql import SqlStore
from tidegate.testing.stores import NOW, STREAM, TTL, event, mark, take

SECRET = "s3cret:/@?#% &+ü'\"\\"


@pytest.fixture(params=["mariadb_database", "postgres_database"])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def store(server: Server) -> Iterator[SqlStore]:
    with closing(SqlStore(server.url)) as store:
        yield store


def numbers(store: SqlStore) -> list[int]:
    return [item.data["number"] for item in store.history(STREAM)]


def disconnect_all(server: Server) -> None:
    """What a server does to idle connections, sooner or later."""
    if server.kind == "postgresql":
        server.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return
    for (session,) in server.execute(
        "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
    ):
        server.execute(f"KILL CONNECTION {session}")


# --- Connections that break --------------------------------------------------


def test_a_connection_that_the_server_closed_is_replaced_without_a_word(
    store: SqlStore, server: Server
) -> None:
    lease = take(store)
    disconnect_all(server)
    assert store.write(mark(number=1), expected=0, lease=lease, events=[event(1)]) == 1
    disconnect_all(server)
    assert store.read(STREAM).version == 1
    disconnect_all(server)
    store.renew(STREAM, lease, now=NOW, ttl=TTL)
    disconnect_all(server)
    assert numbers(store) == [1]
    disconnect_all(server)
    store.release(STREAM, lease)
    disconnect_all(server)
    assert take(store, nonce="n2").fence == next_fence(lease.fence, NOW)


@pytest.fixture
def line(server: Server) -> Iterator[tuple[SqlStore, Line]]:
    with proxied(server) as (behind, line), closing(SqlStore(behind.url)) as store:
        yield store, line


@pytest.mark.parametrize("cut", Cut)
def test_a_commit_without_an_answer_has_an_unknown_outcome(line: tuple[SqlStore, Line], cut: Cut) -> None:
    store, wire = line
    lease = take(store)
    wire.cut = cut
    with pytest.raises(OutcomeUnknown):
        store.write(mark(number=1), expected=0, lease=lease, events=[event(1)])
    landed = cut is Cut.AFTER
    assert store.read(STREAM).version == landed
    assert numbers(store) == ([1] if landed else [])


@pytest.mark.parametrize("cut", Cut)
def test_a_held_stream_finds_out_what_became_of_its_commit(line: tuple[SqlStore, Line], cut: Cut) -> None:
    store, wire = line
    me = this_process("a sync")
    with hold(store, STREAM, holder=me, clock=lambda: datetime.now(UTC), nonce="a") as held:
        held.commit(mark(number=1), [event(1)])
        wire.cut = cut
        held.commit(mark(number=2), [event(2)])
        held.commit(mark(number=3), [event(3)])
    assert wire.cuts == 1
    assert store.read(STREAM).version == 3
    assert numbers(store) == [1, 2, 3]


@pytest.mark.parametrize("cut", Cut)
@pytest.mark.parametrize("word", [b"fence = ", b"INSERT INTO tidegate_watermarks"])
def test_a_grant_without_an_answer_is_asked_for_again(
    line: tuple[SqlStore, Line], cut: Cut, word: bytes
) -> None:
    store, wire = line
    store.read(STREAM)
    wire.word, wire.cut = word, cut
    lease = take(store)
    assert wire.cuts == 1
    assert lease.fence == next_fence(0, NOW)
    assert lease == store.read(STREAM).lease


@pytest.mark.parametrize("cut", Cut)
def test_a_write_cut_off_before_its_commit_is_done_again(line: tuple[SqlStore, Line], cut: Cut) -> None:
    store, wire = line
    lease = take(store)
    wire.word, wire.cut = b"INSERT INTO tidegate_history", cut
    assert store.write(mark(number=1), expected=0, lease=lease, events=[event(1)]) == 1
    assert wire.cuts == 1
    assert numbers(store) == [1]


def test_an_interrupted_question_leaves_no_answer_to_the_next_one(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = take(store)
    store.write(mark(number=1), expected=0, lease=lease)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tidegate.state.sql.demand_turn", interrupt)
        with pytest.raises(KeyboardInterrupt):
            store.write(mark(number=2), expected=1, lease=lease)
    assert store.read(STREAM).version == 1
    assert store.write(mark(number=2), expected=1, lease=lease) == 2


def test_threads_share_a_store(store: SqlStore) -> None:
    me = this_process("a sync")
    ttl = timedelta(milliseconds=60)
    with hold(store, STREAM, holder=me, clock=lambda: datetime.now(UTC), nonce="a", ttl=ttl) as held:
        for number in range(1, 101):
            held.commit(mark(number=number), [event(number)])
    assert numbers(store) == list(range(1, 101))


def test_many_can_open_an_empty_database_at_once(server: Server) -> None:
    start = threading.Barrier(10)

    def opened(number: int) -> int:
        with closing(SqlStore(server.url)) as store:
            start.wait()
            return store.read(STREAM).version + number

    with ThreadPoolExecutor(10) as pool:
        assert list(pool.map(opened, range(10))) == list(range(10))


# --- What servers refuse ------------------------------------------------------


def test_a_server_that_cannot_be_reached_is_named(server: Server) -> None:
    url = server.url.replace(f":{server.port}/", ":1/")
    with closing(SqlStore(url)) as store, pytest.raises(ConnectError) as raised:
        store.read(STREAM)
    assert raised.value.transient
    assert f"{server.host}:1" in str(raised.value)
    demand_kept(server.password, raised.value)


def test_a_wrong_password_is_a_refused_login_and_stays_secret(server: Server) -> None:
    url = server.logged_in_as(server.user, quote(SECRET, safe="")).url
    with closing(SqlStore(url)) as store, pytest.raises(LoginRefused) as raised:
        store.read(STREAM)
    demand_kept(SECRET, raised.value)
    assert SECRET not in repr(store)


def test_a_database_that_does_not_exist_is_refused(server: Server) -> None:
    with (
        closing(SqlStore(server.using("nowhere").url)) as store,
        pytest.raises(LoginRefused, match="nowhere"),
    ):
        store.read(STREAM)


def test_a_password_may_hold_any_sign(server: Server) -> None:
    create = f"CREATE USER odd{server.pid} "
    literal = SECRET.replace("'", "''")
    if server.kind == "postgresql":
        server.execute(f"{create} PASSWORD '{literal}'")
        server.execute(f"GRANT ALL ON SCHEMA public TO odd{server.pid}")
    else:
        literal = literal.replace("\\", "\\\\")
        server.execute(f"{create} IDENTIFIED BY '{literal}'")
        server.execute(f"GRANT ALL ON {server.database}.* TO odd{server.pid}")
    user = server.logged_in_as(f"odd{server.pid}", quote(SECRET, safe=""))
    try:
        with closing(SqlStore(user.url)) as store:
            take(store)
    finally:
        if server.kind == "postgresql":
            server.execute(f"DROP OWNED BY odd{server.pid} CASCADE")
        server.execute(f"DROP USER odd{server.pid}")


def test_a_user_who_may_not_create_tables_uses_those_that_are_there(
    postgres_database: Server, store_user: Server
) -> None:
    with closing(SqlStore(store_user.url)) as store, pytest.raises(StateError, match="once to create"):
        store.read(STREAM)
    with closing(SqlStore(postgres_database.url)) as store:
        take(store)
    postgres_database.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {store_user.user}")
    with closing(SqlStore(store_user.url)) as store:
        assert store.read(STREAM).lease is not None


@pytest.fixture
def store_user(postgres_database: Server) -> Iterator[Server]:
    name = f"user_{postgres_database.database}"
    postgres_database.execute(f"CREATE USER {name} PASSWORD 'simple'")
    yield postgres_database.logged_in_as(name, "simple")
    postgres_database.execute(f"DROP OWNED BY {name}")
    postgres_database.execute(f"DROP USER {name}")


def test_a_standby_refuses_to_be_written_in_words(postgres: Server, postgres_standby: Server) -> None:
    with closing(SqlStore(postgres_standby.url)) as store, pytest.raises(StateError, match="read-only"):
        take(store)


# --- URLs --------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
@pytest.mark.parametrize(
    "rest",
    ["u:topsecret/more@h/db", "u:topsecret#more@h/db", "u:topsecret?more@h/db", "u:5432/topsecret@h/db"],
)
def test_a_password_that_breaks_the_url_is_not_shown(scheme: str, rest: str) -> None:
    with pytest.raises(ConfigError, match="%40") as raised:
        SqlStore(f"{scheme}://{rest}")
    demand_kept("topsecret", raised.value)


@pytest.mark.parametrize("url", ["mysql://h", "mysql:///db", "postgresql://u:p@h/", "mysql://u@h:x/db"])
def test_a_url_without_host_or_database_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        SqlStore(url)


def test_an_unknown_option_is_named(postgres_database: Server, mariadb_database: Server) -> None:
    with pytest.raises(ConfigError, match="colour"):
        SqlStore(f"{mariadb_database.url}?colour=red")
    with closing(SqlStore(f"{postgres_database.url}?colour=red")) as store:
        with pytest.raises(ConfigError, match="colour") as raised:
            store.read(STREAM)
        demand_kept(postgres_database.password, raised.value)


def test_options_of_the_url_reach_the_driver(postgres_database: Server) -> None:
    with closing(SqlStore(f"{postgres_database.url}?application_name=mine&sslmode=disable")) as store:
        store.read(STREAM)
        seen = postgres_database.execute("SELECT 1 FROM pg_stat_activity WHERE application_name = 'mine'")
    assert seen == [(1,)]


def demand_kept(secret: str, error: BaseException) -> None:
    """The secret is nowhere in what a user or a log can see of the error."""
    shown = "".join(traceback.format_exception(error))
    for form in (secret, quote(secret, safe=""), repr(secret)):
        assert form not in shown


# --- SQLite ------------------------------------------------------------------


def test_a_locked_sqlite_file_is_an_error_and_no_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "_LOCK_SECONDS", 0.2)
    with closing(SqlStore(f"sqlite://{tmp_path}/state.db")) as store:
        lease = take(store)
        with closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StateError, match="locked"):
                store.write(mark(number=1), expected=0, lease=lease)
            assert store.read(STREAM).version == 0
        assert store.write(mark(number=1), expected=0, lease=lease) == 1


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_text("not a database, by any means\n" * 50)
    with closing(SqlStore(f"sqlite://{tmp_path}/state.db")) as store, pytest.raises(StateError) as raised:
        store.read(STREAM)
    assert str(tmp_path / "state.db") in str(raised.value)


def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    with closing(SqlStore(f"sqlite://{tmp_path}/file/state.db")) as store, pytest.raises(StateError):
        store.read(STREAM)


def test_a_full_sqlite_database_keeps_what_was_committed(tmp_path: Path) -> None:
    with closing(SqlStore(f"sqlite://{tmp_path}/state.db")) as store:
        lease = take(store)
        store.write(mark(number=1), expected=0, lease=lease, events=[event(1)])
        session = store._session  # noqa: SLF001 - the only way to a limit that SQLite forgets on closing
        assert session is not None
        session.rows("PRAGMA max_page_count = 10")
        big = event(2)
        big.data["filler"] = "x" * 1_000_000
        with pytest.raises(StateError, match="make room"):
            store.write(mark(number=2), expected=1, lease=lease, events=[big])
        assert store.read(STREAM).version == 1
        assert numbers(store) == [1]
        session.rows("PRAGMA max_page_count = 100000")
        assert store.write(mark(number=2), expected=1, lease=lease) == 2

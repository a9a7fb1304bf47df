"""The servers of the tests are themselves what the tests take them for."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from hashlib import sha256
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import psycopg
import pymysql
import pytest
from botocore.exceptions import BotoCoreError, ClientError

from tests import built, servers
from tests.servers import S3Server, Server, wait_until_replayed
from tests.toxiproxy import Toxiproxy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[1]


def test_mariadb_answers_in_utc(mariadb: Server) -> None:
    assert mariadb.execute("SELECT @@time_zone, TIMESTAMPDIFF(MINUTE, UTC_TIMESTAMP(), NOW())") == [
        ("+00:00", 0)
    ]


def test_system_time_zone_of_the_eastern_mariadb_is_nine_hours_ahead(mariadb_east: Server) -> None:
    assert mariadb_east.execute(
        "SELECT @@time_zone, @@system_time_zone, TIMESTAMPDIFF(MINUTE, UTC_TIMESTAMP(), NOW())"
    ) == [("SYSTEM", "JST", 540)]


def test_postgres_answers_in_utc_and_allows_prepared_transactions(postgres: Server) -> None:
    assert postgres.execute(
        "SELECT current_setting('TimeZone'), current_setting('max_prepared_transactions')"
    ) == [("UTC", "20")]


@pytest.mark.parametrize("name", ["mariadb", "mariadb_east", "postgres"])
def test_a_wrong_password_is_refused(name: str, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue(name)
    with pytest.raises((psycopg.OperationalError, pymysql.err.OperationalError)):
        server.logged_in_as(server.user, "wrong").execute("SELECT 1")


@pytest.mark.parametrize("round_", [1, 2])
@pytest.mark.parametrize("name", ["mariadb_database", "mariadb_east_database", "postgres_database"])
def test_every_test_gets_an_empty_database(name: str, round_: int, request: pytest.FixtureRequest) -> None:
    database: Server = request.getfixturevalue(name)
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    database.execute("INSERT INTO orders VALUES (%s)", [round_])
    assert database.execute("SELECT id FROM orders") == [(round_,)]


def test_rows_are_invisible_until_they_are_committed(
    mariadb_database: Server, postgres_database: Server
) -> None:
    for database in (mariadb_database, postgres_database):
        database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        with closing(database.connect()) as connection:
            connection.cursor().execute("INSERT INTO orders VALUES (1)")
            assert database.execute("SELECT count(*) FROM orders") == [(0,)]
            connection.commit()
        assert database.execute("SELECT count(*) FROM orders") == [(1,)]


def test_a_database_is_dropped_although_transactions_are_left_open(
    mariadb_database: Server, postgres_database: Server, request: pytest.FixtureRequest
) -> None:
    """The proof is that tearing down neither hangs nor fails."""
    for database in (mariadb_database, postgres_database):
        database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        forgotten = database.connect()
        request.session.addfinalizer(forgotten.close)
        forgotten.cursor().execute("INSERT INTO orders VALUES (1)")


def test_a_database_is_dropped_although_transactions_are_left_prepared(
    mariadb_database: Server, postgres_database: Server
) -> None:
    """The proof is that tearing down neither hangs nor fails."""
    for database in (mariadb_database, postgres_database):
        database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    with closing(mariadb_database.connect(autocommit=True)) as connection:
        for sql in (
            "XA START 'it''s'",
            "INSERT INTO orders VALUES (1)",
            "XA END 'it''s'",
            "XA PREPARE 'it''s'",
        ):
            connection.cursor().execute(sql)
    with closing(postgres_database.connect(autocommit=True)) as connection:
        for sql in ("BEGIN", "INSERT INTO orders VALUES (1)", "PREPARE TRANSACTION 'it''s'"):
            connection.cursor().execute(sql)


def test_the_standby_replays_and_refuses_to_write(
    postgres_database: Server, postgres_standby: Server
) -> None:
    standby = postgres_standby.using(postgres_database.database)
    postgres_database.execute("CREATE TABLE orders AS SELECT generate_series(1, 1000) AS id")
    wait_until_replayed(postgres_database, standby)
    assert standby.execute("SELECT count(*), pg_is_in_recovery() FROM orders") == [(1000, True)]
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        standby.execute("DELETE FROM orders")


def test_the_s3_server_lets_nobody_in_with_a_wrong_secret(fresh_bucket: S3Server) -> None:
    wrong = fresh_bucket.logged_in_as(fresh_bucket.access_key_id, "wrong")
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        wrong.keys()
    with pytest.raises(ClientError, match="AccessDenied"):
        servers.s3_user(fresh_bucket).keys()


def test_the_s3_server_heeds_conditions_and_checksums(fresh_bucket: S3Server) -> None:
    client = fresh_bucket.client()
    put = partial(client.put_object, Bucket=fresh_bucket.bucket, Key="k", Body=b"one")
    etag = put(IfNoneMatch="*")["ETag"]
    for refused in ({"IfNoneMatch": "*"}, {"IfMatch": '"another"'}):
        with pytest.raises(ClientError, match="PreconditionFailed"):
            put(**refused)
    with pytest.raises(ClientError, match="BadDigest"):
        put(ChecksumSHA256=b64encode(sha256(b"two").digest()).decode())
    put(IfMatch=etag)
    assert fresh_bucket.keys() == ["k"]


def test_the_proxy_loses_answers_of_what_was_done(fresh_bucket: S3Server, toxiproxy: Toxiproxy) -> None:
    with toxiproxy.before(fresh_bucket.port) as proxied:
        client = fresh_bucket.behind(proxied.port).client()
        with proxied.losing_answers(), pytest.raises(BotoCoreError):
            client.put_object(Bucket=fresh_bucket.bucket, Key="k", Body=b"one")
        with proxied.down(), pytest.raises(BotoCoreError):
            client.get_object(Bucket=fresh_bucket.bucket, Key="k")
        assert client.get_object(Bucket=fresh_bucket.bucket, Key="k")["Body"].read() == b"one"


def test_of_two_that_build_one_waits_for_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for Go notes every call; it is the program, too, that it claims to have built."""
    go = tmp_path / "go"
    go.write_text(
        "#!/bin/sh\n"
        '[ "$1" = version ] && echo go version go1.99.0 && exit\n'
        f"echo called >> {tmp_path}/calls; sleep 0.2; mkdir -p $GOBIN; cp $0 $GOBIN/server\n"
    )
    go.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: built.ready(built.TOXIPROXY), range(4)))
    assert set(made) == {str(tmp_path / "cache" / "tidegate" / "toxiproxy-v2.12.0")}
    assert (tmp_path / "calls").read_text().splitlines() == ["called"]


def test_spark_workers_are_this_python_and_can_import_the_tests(spark: SparkSession) -> None:
    import pyarrow as pa

    def describe(batches: object) -> object:
        from tests.servers import HOST

        yield pa.RecordBatch.from_pydict({"python": [sys.executable], "host": [HOST]})

    rows = spark.range(0, 1, 1, 1).mapInArrow(describe, "python string, host string").collect()  # type: ignore[arg-type]
    assert [tuple(row) for row in rows] == [(sys.executable, "127.0.0.1")]


SESSION = """
    import os, signal, time

    def test_start(mariadb, postgres, postgres_standby, s3, toxiproxy, started):
        running = (mariadb, postgres, postgres_standby, s3, toxiproxy)
        started.write_text("".join(f"{s.pid} {s.folder}\\n" for s in running))
        ENDING
"""

CONFTEST = """
    from pathlib import Path
    import pytest
    from tests.conftest import mariadb, postgres, postgres_standby, s3, toxiproxy

    @pytest.fixture
    def started():
        return Path(__file__).with_name("started")
"""


@pytest.mark.parametrize(
    ("ending", "folders_remain"),
    [
        pytest.param("pass", False, id="passes"),
        pytest.param("assert False", False, id="fails"),
        pytest.param("os.kill(os.getpid(), signal.SIGINT); time.sleep(60)", False, id="interrupted"),
        pytest.param("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", True, id="terminated"),
        pytest.param("os.kill(os.getpid(), signal.SIGKILL); time.sleep(60)", True, id="killed"),
    ],
)
def test_no_server_outlives_its_session(ending: str, folders_remain: bool, tmp_path: Path) -> None:  # noqa: FBT001
    (tmp_path / "conftest.py").write_text(dedent(CONFTEST))
    (tmp_path / "test_session.py").write_text(dedent(SESSION).replace("ENDING", ending))
    session = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            f"--rootdir={tmp_path}",
            str(tmp_path),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (tmp_path / "started").exists(), session.stdout + session.stderr
    lines = (tmp_path / "started").read_text().splitlines()
    started = [(int(pid), Path(folder)) for pid, folder in (line.split(maxsplit=1) for line in lines)]
    assert len(started) == 5, session.stdout
    for pid, folder in started:
        assert ended_within(120.0, pid), session.stdout
        assert folder.exists() == folders_remain
        shutil.rmtree(folder, ignore_errors=True)


def ended_within(seconds: float, pid: int) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True  # ended; whoever adopted it has yet to collect it
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    return False

"""Redshift as a target: its own driver, the stand-in, and files in a real S3 server."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.servers import Bastion, S3Server, Server
from tidegate.config.connection_models import SshTunnel
from tidegate.core.errors import (
    ConfigError,
    ConnectError,
    IncompatibleTable,
    LoginRefused,
    OutcomeUnknown,
    StagingError,
    TargetError,
    TlsRefused,
)
from tidegate.core.strategies import DistStyle, Placement, WriteMode
from tidegate.core.types import DataType, Kind, Schema
from tidegate.reach.login import Login, Tls, tunnel_of
from tidegate.s3 import S3Place
from tidegate.staging.s3 import S3Staging
from tidegate.targets.contract import LEDGER, StagedSegment, Target
from tidegate.targets.ddl import TableName
from tidegate.targets.redshift import DIALECT, RedshiftSession, RedshiftTarget
from tidegate.targets.redshift_line import Line
from tidegate.testing.redshift import Fault, RedshiftLocal
from tidegate.testing.targets import (
    ORDERS,
    Stage,
    TargetContract,
    orders,
    read_rows,
    remote,
    schema_of,
)

ROLE = "arn:aws:iam::123456789012:role/copy"


def login_to(stand_in: RedshiftLocal, database: Server, **changes: Any) -> Login:
    login = Login(
        stand_in.host, stand_in.port, database.database, database.user, database.password, Tls("disable")
    )
    return replace(login, **changes)


def target_in(stand_in: RedshiftLocal, database: Server, **changes: Any) -> RedshiftTarget:
    return RedshiftTarget(Line(login_to(stand_in, database), **changes), iam_role=ROLE)


@dataclass
class S3Stage(Stage):
    """Makes segments in a bucket. `path` is the file that the S3 server keeps an object in, to be spoiled."""

    area: S3Staging = field(kw_only=True)
    files: Path = field(kw_only=True)

    def segment(
        self, schema: Schema, rows: Sequence[Sequence[object]], *, run: int = 1, key: str | None = None
    ) -> StagedSegment:
        local = super().segment(schema, rows, run=run, key=key)
        assert local.path is not None
        whole = local.segment.key
        put = self.area.put(whole, local.path.read_bytes())
        return replace(
            local,
            segment=replace(local.segment, etag=put.etag),
            path=self.files / whole,
            open=partial(self.area.open, whole),
            area=self.area,
        )


def staging_in(bucket: S3Server) -> S3Staging:
    return S3Staging(
        S3Place(
            bucket.bucket,
            region=bucket.region,
            endpoint_url=bucket.endpoint_url,
            access_key_id=bucket.access_key_id,
            secret_access_key=bucket.secret_access_key,
        )
    )


@pytest.fixture
def stage(tmp_path: Path, fresh_bucket: S3Server) -> S3Stage:
    files = fresh_bucket.folder / "data" / fresh_bucket.bucket
    return S3Stage(tmp_path, area=staging_in(fresh_bucket), files=files)


@pytest.fixture
def target(redshift: RedshiftLocal, postgres_database: Server) -> RedshiftTarget:
    return target_in(redshift, postgres_database)


class TestContract(TargetContract):
    @pytest.fixture
    def target(self, redshift: RedshiftLocal, postgres_database: Server) -> Target:
        return target_in(redshift, postgres_database)

    @pytest.fixture
    def stage(self, tmp_path: Path, fresh_bucket: S3Server) -> Stage:
        files = fresh_bucket.folder / "data" / fresh_bucket.bucket
        return S3Stage(tmp_path, area=staging_in(fresh_bucket), files=files)

    def test_a_segment_that_is_not_what_was_written_is_refused(self, target: Target, stage: Stage) -> None:
        """Redshift reads the object by itself, so it is the object that must not have changed."""
        target.prepare(orders(), ORDERS)
        good, other = stage.segment(ORDERS, [(1, 1, "a")]), stage.segment(ORDERS, [(1, 1, "b")])
        assert isinstance(stage, S3Stage)
        content = stage.area.get(good.segment.key)
        stage.area.put(good.segment.key, stage.area.get(other.segment.key))
        with pytest.raises(StagingError, match="not what was written"):
            target.load(orders(), [remote(good)], generation=1, fence=1)
        assert target.count("orders") == 0
        stage.area.put(good.segment.key, content)
        assert target.load(orders(), [remote(good)], generation=1, fence=1) == 1


# --- files ----------------------------------------------------------------------


def loads(bucket: S3Server) -> list[str]:
    return list(filter(lambda key: "_loads/" in key, bucket.keys()))


def test_files_go_in_as_they_are_and_what_a_load_puts_beside_them_is_gone_after_it(
    target: RedshiftTarget, stage: S3Stage, fresh_bucket: S3Server
) -> None:
    target.prepare(orders(), ORDERS)
    staged = stage.segment(ORDERS, [(1, 1, "a")])
    before = fresh_bucket.requests()
    target.load(orders(), [staged], generation=1, fence=1)
    asked = fresh_bucket.requests() - before
    assert asked["PutObject"] == 1  # the manifest
    assert loads(fresh_bucket) == []


def test_what_copy_does_not_read_goes_in_through_a_copy_that_is_gone_after_it(
    target: RedshiftTarget, stage: S3Stage, fresh_bucket: S3Server
) -> None:
    schema = schema_of(id=Kind.UINT64, at=Kind.TIME, small=Kind.INT8)
    target.prepare(orders(), schema)
    staged = stage.segment(schema, [(2**64 - 1, 86_400_000_000, -128), (None, None, None)])
    before = fresh_bucket.requests()
    target.load(orders(), [staged], generation=1, fence=1)
    assert (fresh_bucket.requests() - before)["PutObject"] == 2
    assert loads(fresh_bucket) == []
    assert read_rows(target, "orders") == [(None, None, None), ("18446744073709551615", "24:00:00", "-128")]


@pytest.mark.parametrize("codec", ["lz4", "brotli", "zstd"])
def test_a_file_whose_compression_copy_does_not_read_goes_in_through_a_copy(
    target: RedshiftTarget, stage: S3Stage, codec: str
) -> None:
    """It may have been staged before the target became a Redshift."""
    target.prepare(orders(), ORDERS)
    staged = recompressed(stage, stage.segment(ORDERS, [(1, 1, "a")]), codec)
    target.load(orders(), [staged], generation=1, fence=1)
    assert target.count("orders") == 1


def recompressed(stage: S3Stage, staged: StagedSegment, codec: str) -> StagedSegment:
    table, out = pq.read_table(BytesIO(stage.area.get(staged.segment.key))), BytesIO()
    pq.write_table(table, out, compression=codec, store_schema=False)
    put = stage.area.put(staged.segment.key, out.getvalue())
    checksum = hashlib.sha256(out.getvalue()).hexdigest()
    changed = replace(staged.segment, bytes=len(out.getvalue()), etag=put.etag, checksum=checksum)
    return replace(staged, segment=changed)


def test_a_file_that_was_put_back_is_known_by_its_content(
    target: RedshiftTarget, stage: S3Stage, fresh_bucket: S3Server
) -> None:
    """Its version is another one than the receipt's, and its bytes are the same."""
    target.prepare(orders(), ORDERS)
    staged = stage.segment(ORDERS, [(1, 1, "a")])
    back = replace(staged, segment=replace(staged.segment, etag="another"))
    assert target.load(orders(), [replace(back, path=None)], generation=1, fence=1) == 1


def test_files_that_do_not_lie_in_s3_are_refused_in_words(target: RedshiftTarget, tmp_path: Path) -> None:
    target.prepare(orders(), ORDERS)
    with pytest.raises(ConfigError, match="do not lie in S3") as caught:
        target.load(orders(), [Stage(tmp_path).segment(ORDERS, [(1, 1, "a")])], generation=1, fence=1)
    assert "type s3" in str(caught.value.hint)


# --- tables ---------------------------------------------------------------------


def test_lengths_are_bytes_and_are_widened_outside_of_transactions(
    target: RedshiftTarget, stage: S3Stage
) -> None:
    short = schema_of(id=Kind.INT64, v=DataType(Kind.TEXT, length=2))
    longer = schema_of(id=Kind.INT64, v=DataType(Kind.TEXT, length=300))
    target.prepare(orders(), short)
    with target.database.reading() as session:
        assert session.columns(TableName("public", "orders"))[1].native == "character varying(8)"
    assert target.action(orders(), longer).startswith("widen v of orders from character varying(8)")
    target.prepare(orders(), longer)
    target.load(orders(), [stage.segment(longer, [(1, "ä" * 300)])], generation=1, fence=1)
    assert read_rows(target, "orders") == [("1", "ä" * 300)]


def test_a_column_that_cannot_be_widened_is_named_and_left_alone(
    target: RedshiftTarget, postgres_database: Server
) -> None:
    target.prepare(orders(), schema_of(id=Kind.INT32))
    postgres_database.execute("CREATE VIEW seen AS SELECT id FROM orders")
    with pytest.raises(IncompatibleTable, match="column id: the rows need BIGINT, the table has integer"):
        target.prepare(orders(), schema_of(id=Kind.INT64))
    assert postgres_database.execute("SELECT count(*) FROM seen") == [(0,)]


def test_a_column_that_rows_are_sorted_by_is_not_made_anew(target: RedshiftTarget, stage: S3Stage) -> None:
    narrow, wide = schema_of(id=Kind.INT32, v=Kind.INT32), schema_of(id=Kind.INT64, v=Kind.INT64)
    table = orders(placement=Placement(sort_key=("id",)))
    target.prepare(table, narrow)
    with pytest.raises(IncompatibleTable, match=r"id: the rows need BIGINT, .* distkey or sortkey"):
        target.prepare(table, wide)
    target.load(table, [stage.segment(narrow, [(1, 2)])], generation=1, fence=1)
    assert read_rows(target, "orders") == [("1", "2")]


def test_a_column_with_grants_of_its_own_is_not_made_anew(
    target: RedshiftTarget, postgres_database: Server
) -> None:
    target.prepare(orders(), schema_of(id=Kind.INT32, more=Kind.INT32))
    postgres_database.execute("GRANT SELECT (id) ON orders TO pg_monitor")
    with pytest.raises(IncompatibleTable, match="id would be made anew, without the grants or policies"):
        target.prepare(orders(), schema_of(id=Kind.INT64, more=Kind.INT32))
    target.prepare(orders(), schema_of(id=Kind.INT32, more=Kind.INT64))


def test_a_new_table_is_distributed_and_sorted_as_asked() -> None:
    place = Placement(DistStyle.KEY, "id", ("at", "id"))
    assert DIALECT.attributes(orders(placement=place)) == ' DISTSTYLE KEY DISTKEY ("id") SORTKEY ("at", "id")'
    assert DIALECT.attributes(orders(placement=Placement(DistStyle.ALL))) == " DISTSTYLE ALL"
    assert DIALECT.attributes(orders()) == ""


def test_keys_that_place_rows_are_taken_by_the_server(target: RedshiftTarget) -> None:
    target.prepare(orders(placement=Placement(DistStyle.KEY, "id", ("at",))), ORDERS)
    with pytest.raises(TargetError, match="named in key does not exist"):
        target.prepare(orders(name="other", placement=Placement(dist_key="nowhere")), ORDERS)


def test_texts_of_a_key_are_told_apart_to_their_last_blank(
    target: RedshiftTarget, stage: S3Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To Redshift `a` and `a ` are equal. The stand-in does not imitate that, so look at what it is asked."""
    table, schema = orders(WriteMode.MERGE), schema_of("id", id=Kind.TEXT, at=Kind.INT64)
    target.prepare(table, schema)
    asked: list[str] = []
    for name in ("rows", "change"):
        monkeypatch.setattr(RedshiftSession, name, _noting(asked, getattr(RedshiftSession, name)))
    rows = [("a", 1), ("a ", 1), ("", 1)]
    target.load(table, [stage.segment(schema, rows)], generation=1, fence=1)
    assert target.present("orders", ["id"], [("a ",), ("",)]) == 2
    assert read_rows(target, "orders", ["id"]) == [("",), ("a",), ("a ",)]
    comparing = [sql for sql in asked if any(sign in sql for sign in ('."id" = ', "GROUP BY"))]
    assert len(comparing) == 4
    assert all("octet_length" in sql for sql in comparing)


def _noting(asked: list[str], work: Callable[..., Any]) -> Callable[..., Any]:
    def noted(session: RedshiftSession, sql: str, parameters: Sequence[object] = ()) -> Any:
        asked.append(sql)
        return work(session, sql, parameters)

    return noted


def snapshot(target: RedshiftTarget, stage: Stage, *ids: int, run: int) -> None:
    table = orders(WriteMode.REPLACE)
    target.prepare(table, ORDERS)
    target.load(table, [stage.segment(ORDERS, [(n, run, "x") for n in ids], run=run)], generation=1, fence=1)


def oid(database: Server) -> object:
    return database.execute("SELECT 'orders'::regclass::oid")


def test_a_replaced_table_is_a_new_one_with_the_old_ones_grants(
    target: RedshiftTarget, postgres_database: Server, stage: S3Stage
) -> None:
    snapshot(target, stage, 1, run=1)
    postgres_database.execute("GRANT SELECT ON orders TO PUBLIC")
    before = oid(postgres_database)
    snapshot(target, stage, 2, 3, run=2)
    assert oid(postgres_database) != before
    assert postgres_database.execute("SELECT has_table_privilege('pg_monitor', 'orders', 'SELECT')") == [
        (True,)
    ]
    assert read_rows(target, "orders", ["id"]) == [("2",), ("3",)]


def test_who_is_not_shown_all_grants_leaves_the_table_where_they_hang(
    target: RedshiftTarget, postgres_database: Server, stage: S3Stage
) -> None:
    """A plain user sees its own grants alone, so a new table would lose those of everybody else."""
    assert not target.exists("orders")  # the stand-in furnishes the database as a superuser
    behind, loader = postgres_database, "pg_signal_backend"
    behind.execute(f"GRANT CREATE ON SCHEMA public TO {loader}")
    behind.execute(f"ALTER ROLE {behind.user} IN DATABASE {behind.database} SET role = '{loader}'")
    snapshot(target, stage, 1, run=1)
    behind.execute("GRANT SELECT ON orders TO pg_monitor")
    before = oid(behind)
    snapshot(target, stage, 2, 3, run=2)
    assert oid(behind) == before
    assert behind.execute("SELECT has_table_privilege('pg_monitor', 'orders', 'SELECT')") == [(True,)]
    assert read_rows(target, "orders", ["id"]) == [("2",), ("3",)]


@pytest.mark.parametrize("mode", WriteMode)
def test_names_may_have_127_bytes(
    target: RedshiftTarget, postgres_database: Server, stage: S3Stage, mode: WriteMode
) -> None:
    """Twice as many as PostgreSQL has: what a table or column is called is asked for and told whole."""
    table = orders(mode, name=f"{'s' * 120}.{'t' * 127}")
    schema = schema_of("id", id=Kind.INT64, at=Kind.INT64, **{"c" * 127: Kind.TEXT, "d" * 127: Kind.TEXT})
    for run in (1, 2):
        target.prepare(table, schema)
        staged = stage.segment(schema, [(run, run, "a", "b")], run=run)
        target.load(table, [staged], generation=1, fence=1)
    assert target.columns(table.name)[:4] == schema.names
    rows = (
        [("2", "2", "a", "b")] if mode is WriteMode.REPLACE else [("1", "1", "a", "b"), ("2", "2", "a", "b")]
    )
    assert read_rows(target, table.name, schema.names) == rows


def test_a_table_that_a_view_shows_keeps_it_when_it_is_replaced(
    target: RedshiftTarget, postgres_database: Server, stage: S3Stage
) -> None:
    snapshot(target, stage, 1, run=1)
    postgres_database.execute("CREATE VIEW seen AS SELECT id FROM orders")
    before = oid(postgres_database)
    snapshot(target, stage, 2, 3, run=2)
    assert oid(postgres_database) == before
    assert postgres_database.execute("SELECT id FROM seen ORDER BY id") == [(2,), (3,)]


@pytest.mark.parametrize(
    "hanging",
    [
        "GRANT SELECT (id) ON orders TO pg_monitor",
        "CREATE POLICY few ON orders USING (id = 1)",
        "ALTER TABLE orders ADD PRIMARY KEY (id)",
        "COMMENT ON COLUMN orders.id IS 'ours'",
    ],
)
def test_a_table_on_which_more_hangs_than_a_new_one_would_have_stays_that_table(
    target: RedshiftTarget, postgres_database: Server, stage: S3Stage, hanging: str
) -> None:
    """Without its policies everybody would see what they hide."""
    snapshot(target, stage, 1, run=1)
    postgres_database.execute(hanging)
    before = oid(postgres_database)
    snapshot(target, stage, 2, 3, run=2)
    assert oid(postgres_database) == before
    assert read_rows(target, "orders", ["id"]) == [("2",), ("3",)]


def test_where_nobody_says_what_hangs_on_a_table_it_stays(
    target: RedshiftTarget, postgres_database: Server, stage: S3Stage
) -> None:
    snapshot(target, stage, 1, run=1)
    before = oid(postgres_database)
    postgres_database.execute("DROP VIEW _redshift_local.svv_rls_attached_policy")
    snapshot(target, stage, 2, 3, run=2)
    assert oid(postgres_database) == before
    assert read_rows(target, "orders", ["id"]) == [("2",), ("3",)]


def test_a_view_of_the_tables_name_is_refused(target: RedshiftTarget, postgres_database: Server) -> None:
    target.prepare(orders(name="other"), ORDERS)
    postgres_database.execute("CREATE VIEW orders AS SELECT 1::bigint AS id")
    with pytest.raises(IncompatibleTable, match="there is a view of that name"):
        target.prepare(orders(), ORDERS)


# --- what goes wrong ------------------------------------------------------------


def test_a_value_that_copy_refuses_is_named_with_its_file_row_and_column(
    target: RedshiftTarget, stage: S3Stage, fresh_bucket: S3Server
) -> None:
    schema = schema_of(id=Kind.INT64, v=DataType(Kind.TEXT, length=1))
    target.prepare(orders(), schema)
    staged = stage.segment(schema, [(1, "ok"), (2, "a" * 5)])
    with pytest.raises(TargetError) as caught:
        target.load(orders(), [staged], generation=1, fence=1)
    assert str(caught.value.message) == (
        "COPY refused column v (character varying(4)), row 2: String length exceeds DDL length"
    )
    assert caught.value.where == f"s3://{fresh_bucket.bucket}/{staged.segment.key}"
    assert "lengths count bytes" in str(caught.value.hint)
    assert target.count("orders") == 0


def test_what_an_earlier_session_of_the_same_number_was_told_is_no_news(
    redshift: RedshiftLocal, postgres_database: Server, stage: S3Stage
) -> None:
    target = RedshiftTarget(Line(login_to(redshift, postgres_database)), iam_role="nobody")
    target.prepare(orders(), ORDERS)
    staged = stage.segment(ORDERS, [(1, 1, "a")])
    with target.database.reading() as session:
        [(number,)] = session.rows("SELECT pg_backend_pid()")
        postgres_database.execute(
            "INSERT INTO _redshift_local.load_errors (session_id, file_name, error_message) "
            f"VALUES ({number}, 's3://elsewhere/old.parquet', 'old')"
        )
        with pytest.raises(TargetError, match="Invalid IAM role: nobody"):
            session.copy([staged], "orders", run_column=None)


@pytest.mark.parametrize("mode", WriteMode)
def test_a_copy_that_fails_half_way_leaves_nothing_and_the_next_load_brings_all(
    target: RedshiftTarget, stage: S3Stage, redshift: RedshiftLocal, mode: WriteMode
) -> None:
    table = orders(mode)
    target.prepare(table, ORDERS)
    segments = [stage.segment(ORDERS, [(n, n, "x")]) for n in range(3)]
    redshift.arm(Fault.COPY_HALF_WAY)
    with pytest.raises(TargetError, match="half-way"):
        target.load(table, segments, generation=1, fence=1)
    assert target.count("orders") == 0
    assert target.loaded(table.stream, 1, [item.segment.key for item in segments]) == frozenset()
    assert target.load(table, segments, generation=1, fence=1) == 3


@pytest.mark.parametrize("mode", WriteMode)
@pytest.mark.parametrize("fault", [Fault.DROP_BEFORE_COMMIT, Fault.DROP_AFTER_COMMIT])
def test_a_connection_lost_at_the_commit_leaves_it_to_the_ledger_to_say(
    target: RedshiftTarget, stage: S3Stage, redshift: RedshiftLocal, mode: WriteMode, fault: Fault
) -> None:
    table = orders(mode)
    landed = 3 if fault is Fault.DROP_AFTER_COMMIT else 0
    target.prepare(table, ORDERS)
    segments = [stage.segment(ORDERS, [(n, n, "x")]) for n in range(3)]
    keys = frozenset(item.segment.key for item in segments)
    redshift.arm(fault)
    with pytest.raises(OutcomeUnknown, match="the answer to the commit was lost"):
        target.load(table, segments, generation=1, fence=1)
    assert target.loaded(table.stream, 1, sorted(keys)) == (keys if landed else frozenset())
    assert target.load(table, segments, generation=1, fence=1) == 3 - landed
    assert target.count("orders") == 3


def test_a_ledger_that_somebody_holds_is_said_after_a_while(
    redshift: RedshiftLocal, postgres_database: Server, stage: S3Stage
) -> None:
    target = target_in(redshift, postgres_database, lock_wait=0.3)
    target.prepare(orders(), ORDERS)
    with closing(postgres_database.connect()) as connection, closing(connection.cursor()) as cursor:
        cursor.execute(f"LOCK TABLE {LEDGER}")
        with pytest.raises(TargetError, match="another load has held the ledger"):
            target.load(orders(), [stage.segment(ORDERS, [(1, 1, "a")])], generation=1, fence=1)


def test_sessions_carry_the_query_group_and_the_timeout(
    redshift: RedshiftLocal, postgres_database: Server
) -> None:
    target = target_in(redshift, postgres_database, query_group="it's ours", statement_timeout=90.0)
    with target.database.reading() as session:
        assert session.rows("SHOW query_group") == [("it's ours",)]
        assert session.rows("SHOW statement_timeout") == [("90s",)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the driver leaves sockets
@pytest.mark.filterwarnings("ignore:ssl.*:DeprecationWarning")  # and has an old way with TLS
def test_a_login_that_is_refused_is_told_from_a_server_that_is_not_there(
    redshift: RedshiftLocal, postgres_database: Server
) -> None:
    wrong = RedshiftTarget(Line(login_to(redshift, postgres_database, password="wr0ng")))
    with pytest.raises(LoginRefused, match=r"^(?!.*wr0ng).*password authentication failed"):
        wrong.count("orders")
    nowhere = RedshiftTarget(Line(login_to(redshift, postgres_database, port=1)))
    with pytest.raises(ConnectError, match="cannot connect to Redshift"):
        nowhere.count("orders")
    strict = RedshiftTarget(Line(login_to(redshift, postgres_database, tls=Tls("require"))))
    with pytest.raises(TlsRefused, match="does not encrypt"):
        strict.count("orders")
    preferring = RedshiftTarget(Line(login_to(redshift, postgres_database, tls=Tls("prefer"))))
    assert not preferring.exists("orders")
    gc.collect()


def test_it_is_reached_through_a_bastion(
    redshift: RedshiftLocal, postgres_database: Server, bastion: Bastion
) -> None:
    tunnel = tunnel_of(SshTunnel(**bastion.tunnel()))
    assert tunnel is not None
    assert not RedshiftTarget(Line(login_to(redshift, postgres_database, tunnel=tunnel))).exists("orders")


def test_decimals_and_dates_keep_their_sizes(target: RedshiftTarget) -> None:
    schema = schema_of(d=DataType(Kind.DECIMAL, 12, 2), u=Kind.UUID, b=Kind.BYTES, at=Kind.INSTANT)
    target.prepare(orders(), schema)
    assert target.action(orders(), schema) == "append to orders"

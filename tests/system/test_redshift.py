"""Tables travel from MariaDB through S3 into Redshift, exactly once, whatever goes wrong on the way."""

from __future__ import annotations

import signal
from datetime import timedelta

import pytest

from tests.crash.test_crash_matrix import DRIVER, demand_no_dangling_segment, victim
from tests.servers import S3Server
from tests.system.conftest import Build, Place
from tests.system.shop import FULL_SYNC, HYBRID, ID_ONLY, LONG_AGO, in_s3
from tests.system.syncing import Notes, sync_place
from tidegate.config.project import Project
from tidegate.core.errors import StagingError, TargetError, VerificationFailed
from tidegate.core.receipts import Receipt
from tidegate.core.watermark import StreamId
from tidegate.sync.pipeline import Request, Scope
from tidegate.sync.verifying import verified
from tidegate.testing.redshift import Fault, RedshiftLocal

MODES: dict[str, dict[str, str]] = {
    "merge": HYBRID,
    "append": {**ID_ONLY, "write_mode": "append"},
    "replace": FULL_SYNC,
}


@pytest.fixture
def place(build: Build, fresh_bucket: S3Server) -> Place:
    made = build("mariadb-redshift")
    made.sections = {**made.sections, **in_s3(fresh_bucket)}
    made.shop.create()
    made.shop.insert(250)
    made.configure(processing={"batch_size": 100})
    return made


@pytest.mark.parametrize("mode", MODES)
def test_rows_arrive_once_in_every_write_mode(place: Place, mode: str, fresh_bucket: S3Server) -> None:
    place.configure({"orders": MODES[mode]}, processing={"batch_size": 100})
    place.synced()
    place.agree()
    place.shop.insert(30, first=1_000, at=LONG_AGO + timedelta(days=1))
    if mode != "append":
        place.shop.execute(
            f"UPDATE orders SET note = 'again', updated_at = '{LONG_AGO.replace(month=3)}' WHERE id < 9"
        )
    place.synced()
    place.agree()
    place.synced()
    place.agree()
    assert not [key for key in fresh_bucket.keys("staging/") if "_loads" in key]


def test_a_key_that_is_unsigned_needs_no_second_copy_of_its_files(
    place: Place, fresh_bucket: S3Server
) -> None:
    del place.sections["state"]  # leases are renewed by requests, too
    place.configure(processing={"batch_size": 100})
    place.synced(scope=Scope.EXTRACT)
    before = fresh_bucket.requests()
    place.synced(scope=Scope.LOAD)
    asked = fresh_bucket.requests() - before
    assert asked["PutObject"] <= 2  # the manifest, and a marker at most
    assert asked["CreateMultipartUpload"] == 0
    place.agree()
    kinds = (
        "SELECT data_type FROM information_schema.columns WHERE table_name = 'orders' ORDER BY column_name"
    )
    assert ("numeric",) in place.warehouse.execute(kinds)


def test_names_types_and_sizes_are_redshifts(place: Place) -> None:
    place.shop.execute(
        "CREATE TABLE odd (id INT UNSIGNED PRIMARY KEY, `User` TINYINT, `with space` TIME, "
        "moment TIMESTAMP(6) NULL, word VARCHAR(10), body JSON)"
    )
    place.shop.run(
        "INSERT INTO odd VALUES "
        "(4294967295, -128, '-838:59:59', '2026-01-02 03:04:05.123456', 'äöüß🌊', '{}')"
    )
    place.configure({"odd": {**ID_ONLY, "redshift": {"dist_key": "id", "sort_key": ["moment"]}}})
    place.synced()
    [row] = place.warehouse.execute("SELECT id, user_, with_space, moment::text, word, body FROM odd")
    assert row == (4294967295, -128, "-838:59:59", "2026-01-02 03:04:05.123456+00", "äöüß🌊", "{}")


_SUMS = "count(*), sum(id), sum(amount), sum(length(customer)), min(updated_at), max(updated_at)"


def sums(place: Place) -> list[tuple[object, ...]]:
    there = place.warehouse.execute(f"SELECT {_SUMS} FROM orders")
    assert there == place.shop.execute(f"SELECT {_SUMS} FROM orders")
    return there


def test_a_table_of_many_chunks_arrives_whole_and_so_does_what_changes_in_it(place: Place) -> None:
    """What the benchmark does with two million rows, with sixty thousand."""
    many = "SELECT 1000 + n, CONCAT('customer ', n % 97), n / 7, NULL, TIMESTAMPADD(SECOND, n, '2025-01-01')"
    place.shop.run(f"INSERT INTO orders {many} FROM {place.shop.numbers(60_000)}")
    place.configure(processing={"batch_size": 5_000, "parallelism": 2})
    assert place.synced().rows_loaded == 60_250
    sums(place)
    place.shop.run("UPDATE orders SET amount = amount + 1, updated_at = '2025-06-01' WHERE id % 10 = 0")
    assert place.synced().rows_loaded == 6_025
    assert sums(place)[0][0] == 60_250


# --- what goes wrong ------------------------------------------------------------------


class Impatient(Notes):
    """Somebody presses Ctrl-C when the first file is staged."""

    def staged(self, stream: StreamId, receipt: Receipt) -> None:  # noqa: ARG002 - the contract's
        raise KeyboardInterrupt


def test_interrupted_backup(place: Place) -> None:
    """Some files are staged, none is loaded; the next run goes on from there, and nothing is read twice."""
    with pytest.raises(KeyboardInterrupt):
        sync_place(place.folder, Request(), place.session(), Impatient())
    interrupted = place.mark()
    assert interrupted.loaded.rows_total == 0
    assert interrupted.open_run is not None
    demand_no_dangling_segment(place)

    place.synced()

    place.agree()
    assert place.mark().extracted.rows_total == 250


def test_backup_done_but_load_pending(place: Place) -> None:
    """What was staged by one command is loaded by a later one, without another look at the source."""
    staged = place.synced(scope=Scope.EXTRACT)
    assert (staged.rows_extracted, len(place.mark().pending)) == (250, 3)
    assert place.warehouse.execute("SELECT to_regclass('orders')") == [(None,)]

    loaded = place.synced(scope=Scope.LOAD)

    assert (loaded.rows_extracted, loaded.rows_loaded) == (0, 250)
    place.agree()


def test_load_failing_half_way(place: Place, redshift: RedshiftLocal) -> None:
    """Nothing of it is in the table, all of it is still in staging, and the next run brings it."""
    place.configure({"orders": {**HYBRID, "retries": {"max": 0}}}, processing={"batch_size": 100})
    redshift.arm(Fault.COPY_HALF_WAY)
    [table] = place.sync().tables.values()

    assert isinstance(table.error, TargetError)
    assert "half-way" in str(table.error)
    assert place.warehouse.rows() == []
    assert len(place.mark().pending) == 3
    place.synced()
    place.agree()


def test_row_count_mismatch(place: Place) -> None:
    """Rows that vanished behind our back are missed by `--verify-data`."""
    place.synced()
    pipeline = Project.load(place.folder).pipeline("shop")
    [agreed] = verified(place.sync(), pipeline, place.parts()).tables.values()
    assert agreed.error is None
    place.warehouse.execute("DELETE FROM orders WHERE id <= 10")

    [table] = verified(place.sync(), pipeline, place.parts()).tables.values()

    assert isinstance(table.error, VerificationFailed)
    assert "the warehouse has 240 rows, the source says 250" in str(table.error)


def test_a_file_with_other_rows_than_its_receipt_says_keeps_all_files_out(
    place: Place, fresh_bucket: S3Server
) -> None:
    place.synced(scope=Scope.EXTRACT)
    first, *_, last = place.mark().pending
    client, bucket = fresh_bucket.client(), fresh_bucket.bucket
    whole = client.get_object(Bucket=bucket, Key=f"staging/{first.key}")["Body"].read()
    other = client.get_object(Bucket=bucket, Key=f"staging/{last.key}")["Body"].read()
    client.put_object(Bucket=bucket, Key=f"staging/{first.key}", Body=other)

    [table] = place.sync(scope=Scope.LOAD).tables.values()

    assert isinstance(table.error, StagingError)
    assert first.key in str(table.error)
    assert len(place.mark().pending) == 3
    client.put_object(Bucket=bucket, Key=f"staging/{first.key}", Body=whole)
    place.synced(scope=Scope.LOAD)
    place.agree()


@pytest.mark.parametrize("fault", [Fault.DROP_BEFORE_COMMIT, Fault.DROP_AFTER_COMMIT])
def test_a_connection_lost_at_the_commit_is_settled_by_the_ledger(
    place: Place, redshift: RedshiftLocal, fault: Fault
) -> None:
    """The run goes on by itself: it asks what happened, and loads only what is not there."""
    place.configure({"orders": MODES["append"]}, processing={"batch_size": 100})
    place.synced()
    place.shop.insert(30, first=1_000, at=LONG_AGO + timedelta(days=1))
    place.synced(scope=Scope.EXTRACT)
    redshift.arm(fault)
    place.synced(scope=Scope.LOAD)
    place.agree()


KILLED = (
    ("merge", "before the target is prepared"),
    ("append", "before the rows are loaded"),
    ("append", "between the rows and the loaded mark"),
    ("replace", "between the rows and the loaded mark"),
)


@pytest.mark.parametrize(("mode", "moment"), KILLED, ids=[f"{mode} {moment}" for mode, moment in KILLED])
def test_a_sync_killed_around_the_load_is_made_whole_by_the_next(
    place: Place, mode: str, moment: str
) -> None:
    """The files are staged before, so the victim needs no Spark of its own."""
    place.configure({"orders": MODES[mode]}, processing={"batch_size": 100})
    place.synced(scope=Scope.EXTRACT)
    assert victim(place.folder, {**DRIVER[moment], "scope": Scope.LOAD}) == -signal.SIGKILL

    demand_no_dangling_segment(place)
    place.synced()

    place.agree()

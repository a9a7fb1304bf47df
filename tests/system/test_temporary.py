"""The job of a temporary table: whatever happens, no row is lost, none is doubled, and none goes unproved."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from deltalake import DeltaTable

from tests import servers
from tests.system.conftest import Build, Place
from tests.system.errands import run_job
from tests.system.shop import HYBRID, LONG_AGO, in_s3
from tidegate.core.errors import ConfigError, DownloadFailed, LeaseHeld, VerificationFailed
from tidegate.core.watermark import StreamId
from tidegate.sources.erasing import Eraser
from tidegate.sync.download import Download
from tidegate.sync.errand import JobResult
from tidegate.sync.pipeline import Scope
from tidegate.sync.streams import JOB

ROUTES = ["mariadb-duckdb", "postgres-postgres"]
FURTHER = ["mariadb-redshift", "postgres-delta", "sqlite-duckdb"]
BY_ID = {"cdc_strategy": "id_only", "cdc_timestamp_column": None, "cdc_id_column": "id"}
LATER = LONG_AGO + timedelta(days=1)


@pytest.fixture(params=ROUTES)
def temp(request: pytest.FixtureRequest, build: Build) -> Place:
    return prepared(build(request.param))


def far(request: pytest.FixtureRequest, route: str) -> Place:
    """The same on another route; what goes to Redshift goes through a bucket."""
    place: Place = request.getfixturevalue("build")(route)
    if route.endswith("redshift"):
        place.sections = {**place.sections, **in_s3(request.getfixturevalue("fresh_bucket"))}
    return prepared(place)


@pytest.fixture
def one(build: Build) -> Place:
    return prepared(build("mariadb-duckdb"))


def prepared(place: Place, **options: Any) -> Place:
    """A temporary table with 30 rows, and a job that deletes ten at a time."""
    place.shop.create()
    place.shop.insert(30)
    place.sources = {"shop_rw": place.shop.config}
    configure(place, **options)
    return place


def configure(place: Place, table: dict[str, Any] | None = None, **job: Any) -> None:
    place.configure({"orders": {**HYBRID, **(table or {})}}, processing={"batch_size": 12})
    path = place.folder / "config/pipelines/shop.yml"
    document = yaml.safe_load(path.read_text())
    document["job"] = {"write_connection": "shop_rw", "batch_size": 10, **job}
    path.write_text(yaml.safe_dump(document))


def job(place: Place, **options: Any) -> JobResult:
    return run_job(place.folder, place.session(), **options)


def ids(place: Place) -> list[int]:
    return [row[0] for row in place.shop.rows()]


def arrived(place: Place) -> list[int]:
    return [row[0] for row in place.warehouse.rows()]


def staged(place: Place) -> list[str]:
    return [item.key for item in place.parts().staging.list()]


def test_what_was_moved_on_is_proved_and_then_deleted_where_it_came_from(temp: Place) -> None:
    result = job(temp)
    [count], [cleaned] = result.counts, result.cleaned
    assert (count.source, count.extracted, count.target) == (30, 30, 30)
    assert (cleaned.verified, cleaned.deleted, cleaned.reset) == (30, 30, True)
    assert (ids(temp), arrived(temp)) == ([], list(range(1, 31)))
    assert (staged(temp), temp.mark().extracted.position) == ([], None)
    assert "job of shop: 30 temporary rows deleted" in str(temp.mark().manual)


def command(place: Place, *arguments: str) -> Any:
    from tidegate.cli.root import tidegate

    return CliRunner().invoke(tidegate, ["--project", str(place.folder), "job", "run", "shop", *arguments])


def test_the_command_does_all_of_it_and_tells_it_as_json(one: Place) -> None:
    configure(
        one, download={"command": ["sh", "-c", 'echo "$MODE $*" > said', "x"], "environment": {"MODE": "m"}}
    )
    done = command(one, "--json-output", "--", "--hours", "-1")
    assert done.exit_code == 0, done.stderr
    assert (one.folder / "said").read_text() == "m --hours -1\n"
    told = json.loads(done.stdout)
    assert (told["status"], told["sync"]["status"]) == ("success", "success")
    assert told["counts"] == {"orders": {"source": 30, "extracted": 30, "target": 30, "newer": 0}}
    assert told["cleaned"] == {"orders": {"verified": 30, "deleted": 30, "watermark_reset": True}}
    assert ids(one) == []
    assert command(one, "--sync-only").exit_code == 0  # nothing new, nothing to do


def test_rows_that_are_too_new_to_be_read_are_left_and_told(one: Place) -> None:
    """Behind the ceiling others may still commit."""
    one.shop.insert(2, first=100, at=datetime.now(UTC).replace(tzinfo=None) + timedelta(hours=1))
    done = command(one)
    assert (done.exit_code, ids(one)) == (0, [100, 101])
    assert "30 in the target; 2 newer ones are for the next run" in done.stdout


def test_the_command_fails_with_its_download(one: Place) -> None:
    configure(one, download={"command": "false"})
    done = command(one)
    assert (done.exit_code, "ended with exit code 1" in done.stderr) == (1, True)
    assert len(ids(one)) == 30


def test_the_next_hour_may_bring_older_rows_and_rows_that_were_there_before(temp: Place) -> None:
    job(temp)
    temp.shop.insert(10, first=26, at=LONG_AGO - timedelta(days=9))
    result = job(temp)
    assert result.cleaned[0].deleted == 10
    assert (ids(temp), arrived(temp)) == ([], list(range(1, 36)))
    assert job(temp).cleaned == []  # an empty table is nothing to do


@pytest.mark.parametrize("route", ["mariadb-duckdb", "sqlite-delta"])
def test_rows_that_come_again_as_they_were_are_appended_once(
    request: pytest.FixtureRequest, route: str
) -> None:
    """The hours that are downloaded overlap, and the mark has forgotten what was there."""
    place = far(request, route)
    configure(place, {"write_mode": "append"})
    job(place)
    place.shop.insert(10, first=26, at=LONG_AGO + timedelta(seconds=25))
    assert job(place).cleaned[0].deleted == 10
    assert (ids(place), arrived(place)) == ([], list(range(1, 36)))


class Meddling:
    """Somebody writes to the table before the first delete, or before rows are looked for to be deleted."""

    def __init__(self, eraser: Eraser, meddle: Callable[[], None], before: str = "erase") -> None:
        self._eraser = eraser
        self._meddle: Callable[[], None] | None = meddle
        self._before = before

    def __getattr__(self, name: str) -> Any:
        if name == self._before and self._meddle is not None:
            self._meddle()
            self._meddle = None
        return getattr(self._eraser, name)


def test_rows_that_arrive_or_change_before_the_delete_survive_and_come_next_time(temp: Place) -> None:
    def meddle() -> None:
        temp.shop.execute(f"UPDATE orders SET updated_at = '{LATER}', note = 'changed' WHERE id IN (3, 29)")
        temp.shop.insert(1, first=100, at=LATER)
        temp.shop.insert(1, first=101, at=LONG_AGO - timedelta(days=1))  # below the mark

    result = job(temp, around=lambda eraser: Meddling(eraser, meddle))
    assert (result.cleaned[0].verified, result.cleaned[0].deleted) == (30, 28)
    assert ids(temp) == [3, 29, 100, 101]

    assert job(temp).cleaned[0].deleted == 4
    assert (ids(temp), arrived(temp)) == ([], [*range(1, 31), 100, 101])
    assert [row[3] for row in temp.warehouse.rows() if row[0] in (3, 29)] == ["changed", "changed"]


@pytest.mark.parametrize("route", FURTHER)
def test_rows_are_counted_where_they_have_arrived_on_every_route(
    request: pytest.FixtureRequest, route: str
) -> None:
    """One that is missing there keeps all of them in the temporary table, until it is there."""
    place = far(request, route)
    with pytest.raises(VerificationFailed, match="30 in the source, 30 extracted, 29 in the target"):
        job(place, synced=lambda: lose(place, 7))
    assert len(ids(place)) == 30
    place.by_hand().reset([StreamId("shop", "orders")], reason="bring it again")
    assert job(place).cleaned[0].deleted == 30
    assert (ids(place), arrived(place)) == ([], list(range(1, 31)))


def lose(place: Place, number: int) -> None:
    if place.warehouse.config["type"] == "delta":
        DeltaTable(Path(place.warehouse.config["path"]) / "orders").delete(f"id = {number}")
    else:
        place.warehouse.execute(f"DELETE FROM orders WHERE id = {number}")


def test_a_difference_in_the_target_leaves_everything_in_place(temp: Place) -> None:
    def lose() -> None:
        temp.warehouse.execute("DELETE FROM orders WHERE id = 7")

    with pytest.raises(
        VerificationFailed, match="30 in the source, 30 extracted, 29 in the target"
    ) as caught:
        job(temp, synced=lose)
    assert caught.value.exit_code == 4
    assert (len(ids(temp)), len([key for key in staged(temp) if key.endswith(".parquet")])) == (30, 3)
    assert temp.mark().extracted.position is not None


def test_a_row_that_was_never_read_leaves_everything_in_place(one: Place) -> None:
    def arrive() -> None:
        one.shop.insert(1, first=50, at=LONG_AGO - timedelta(days=1))

    with pytest.raises(VerificationFailed, match="31 in the source, 30 extracted, 30 in the target"):
        job(one, synced=arrive)
    assert len(ids(one)) == 31


def test_a_row_that_changes_before_the_count_agrees_when_the_job_runs_again(one: Place) -> None:
    def change() -> None:
        one.shop.execute(f"UPDATE orders SET updated_at = '{LATER}' WHERE id = 5")

    with pytest.raises(VerificationFailed, match="29 in the source, 30 extracted"):
        job(one, synced=change)
    [count], [cleaned] = (done := job(one)).counts, done.cleaned
    assert (count.source, count.extracted, count.target, cleaned.deleted) == (30, 30, 30, 30)
    assert (ids(one), arrived(one)) == ([], list(range(1, 31)))


def test_a_row_that_changes_after_the_count_leaves_everything_in_place(one: Place) -> None:
    def change() -> None:
        one.shop.execute(f"UPDATE orders SET updated_at = '{LATER}' WHERE id = 5")

    with pytest.raises(
        VerificationFailed, match="of 30 rows that were counted the write connection shows 29"
    ):
        job(one, around=lambda eraser: Meddling(eraser, change, before="count"))
    assert len(ids(one)) == 30
    assert job(one).cleaned[0].deleted == 30
    assert (ids(one), arrived(one)) == ([], list(range(1, 31)))


# Behind the sync a job writes `verified`, deletes three times ten rows, resets the mark, and cleans staging.
STEPS: dict[str, dict[str, Any]] = {
    "before it is written down that the counts agree": {"part": "store", "method": "write", "event": "job"},
    "after it is written down that the counts agree": {
        "part": "store",
        "method": "write",
        "event": "job",
        "moment": "after",
    },
    "half-way through the rows": {"part": "eraser", "method": "erase", "nth": 2, "moment": "after"},
    "before the mark is reset": {"part": "store", "method": "write", "event": "manual"},
    "before staging is cleaned": {"part": "store", "method": "write", "event": "manual", "moment": "after"},
}


KILLED = {
    "mariadb-duckdb merge": list(STEPS),
    "mariadb-duckdb append": list(STEPS)[2:4],
    "mariadb-redshift merge": list(STEPS)[2:5:2],
    "postgres-postgres append": list(STEPS)[2:3],
    "sqlite-delta append": list(STEPS)[1:4:2],
}


@pytest.mark.parametrize("case", KILLED)
def test_a_job_killed_at_any_step_is_made_whole_by_the_next(
    request: pytest.FixtureRequest, case: str
) -> None:
    """In one table, one step after the other: what a step leaves behind is where the next one begins."""
    (route, mode), steps = case.split(), KILLED[case]
    one = far(request, route)
    configure(one, {"write_mode": mode})
    expected = set(range(1, 31))
    for number, step in enumerate(steps, start=1):
        one.synced()  # so that the victim finds nothing new, and needs no Spark
        assert victim(one.folder, STEPS[step]) == -signal.SIGKILL
        one.shop.insert(5, first=1_000 * number, at=LATER + timedelta(days=number))
        expected |= set(range(1_000 * number, 1_000 * number + 5))
        job(one)
        assert ids(one) == []
        assert arrived(one) == sorted(expected), step
        one.shop.insert(20, first=1_000 * number + 100, at=LONG_AGO)
        expected |= set(range(1_000 * number + 100, 1_000 * number + 120))


def victim(folder: Path, fault: dict[str, Any]) -> int:
    command = [sys.executable, "-m", "tests.system.errands", str(folder), json.dumps(fault)]
    root = Path(__file__).parents[2]
    environ = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, cwd=root, env=environ, check=False, capture_output=True, timeout=600)
    assert done.returncode < 0, done.stderr.decode()
    return done.returncode


def test_rows_whose_files_are_to_be_loaded_again_are_deleted_no_further(one: Place) -> None:
    """Between two halves of a job somebody finds the target empty, and lets it be filled again."""
    one.synced()
    assert victim(one.folder, STEPS["half-way through the rows"]) == -signal.SIGKILL
    left, files = ids(one), staged(one)
    one.warehouse.execute("DELETE FROM orders WHERE id > 1")
    with pytest.raises(VerificationFailed, match=r"proved 30 rows and begun .* the target has 1 of them"):
        job(one)
    assert (ids(one), staged(one)) == (left, files)
    orders = StreamId("shop", "orders")
    one.by_hand().reset_loaded(orders, one.parts().staging, replaced=False, reason="it was empty")
    with pytest.raises(VerificationFailed, match="3 files whose rows are being deleted wait to be loaded"):
        job(one)
    assert (ids(one), len(one.mark().pending)) == (left, 3)
    one.synced(scope=Scope.LOAD)
    job(one)
    assert (ids(one), arrived(one)) == ([], list(range(1, 31)))


def test_rows_that_a_sync_brings_between_two_halves_of_a_job_are_proved_too(one: Place) -> None:
    """The first half is finished without forgetting what is not proved yet."""
    one.synced()
    assert victim(one.folder, STEPS["half-way through the rows"]) == -signal.SIGKILL
    one.shop.insert(5, first=100, at=LATER)
    one.synced()
    result = job(one)
    assert (result.finished_first[0].reset, result.counts[0].source, result.cleaned[0].deleted) == (
        False,
        5,
        5,
    )
    assert (ids(one), arrived(one)) == ([], [*range(1, 31), *range(100, 105)])


MOMENTS = {
    "mysql": "ALTER TABLE orders MODIFY updated_at TIMESTAMP(6) NOT NULL",
    "postgresql": "ALTER TABLE orders ALTER COLUMN updated_at TYPE timestamptz",
}


def test_versions_that_are_moments_in_time_are_found_whatever_the_zone(temp: Place) -> None:
    temp.shop.execute(MOMENTS[temp.shop.kind])
    configure(temp, {"write_mode": "append"})
    assert job(temp).cleaned[0].deleted == 30
    assert temp.shop.execute("SELECT count(*) FROM orders") == [(0,)]


@pytest.mark.parametrize("route", ROUTES + FURTHER)
def test_every_version_is_counted_where_rows_are_appended(request: pytest.FixtureRequest, route: str) -> None:
    temp = far(request, route)
    configure(temp, {"write_mode": "append"})

    def change() -> None:
        temp.shop.execute(f"UPDATE orders SET updated_at = '{LATER}' WHERE id = 5")

    with pytest.raises(VerificationFailed, match="29 in the source, 30 extracted, 30 in the target"):
        job(temp, synced=change)
    [count] = job(temp).counts
    assert (count.source, count.extracted, count.target, count.expected) == (30, 30, 31, 31)
    assert (ids(temp), arrived(temp).count(5), len(arrived(temp))) == ([], 2, 31)


def test_a_second_job_at_once_is_told_so_and_does_nothing(one: Place) -> None:
    touched = one.folder / "touched"
    download = Download(("touch", str(touched)), one.folder, one.folder / "lock", timedelta(minutes=1))
    with one.parts().hold(StreamId("shop", f"orders{JOB}"), *clocks()), pytest.raises(LeaseHeld):
        job(one, download=download)
    assert not touched.exists()
    job(one, download=download)
    assert touched.exists()


def clocks() -> tuple[Any, Any]:
    from tests.system.errands import now, token

    return now, token


def test_a_download_that_fails_leaves_everything_in_place(one: Place) -> None:
    download = Download(("false",), one.folder, one.folder / "lock", timedelta(minutes=1))
    with pytest.raises(DownloadFailed):
        job(one, download=download)
    assert (len(ids(one)), staged(one)) == (30, [])


def test_a_write_connection_to_another_database_deletes_nothing(
    build: Build, request: pytest.FixtureRequest
) -> None:
    place = prepared(build("postgres-duckdb"))
    with servers.fresh_database(request.getfixturevalue("postgres")) as other:
        other.execute("CREATE TABLE orders (id BIGINT PRIMARY KEY, updated_at TIMESTAMP NOT NULL)")
        place.sources = {"shop_rw": other.config}
        configure(place)
        with pytest.raises(ConfigError, match="shows none of the rows"):
            job(place)
        assert len(ids(place)) == 30
        with pytest.raises(ConfigError, match="shows none of the rows"):
            job(place)  # and it does not get used to it


def test_rows_that_were_begun_to_be_deleted_are_not_looked_for_elsewhere(one: Place) -> None:
    one.synced()
    victim(one.folder, STEPS["half-way through the rows"])
    one.sources = {"shop_rw": {**one.shop.config, "host": "localhost"}}
    configure(one)
    with pytest.raises(ConfigError, match="is to be finished there"):
        job(one)
    assert len(ids(one)) == 10
    one.sources = {"shop_rw": one.shop.config}
    configure(one)
    job(one)
    assert (ids(one), arrived(one)) == ([], list(range(1, 31)))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"cdc_strategy": "full_sync"}, "followed by a timestamp or an id"),
        ({"null_cursor": "include"}, "followed beside the others"),
        ({"write_mode": "append", "columns": {"mask": {"id": "hash"}}}, "by key and version"),
        ({**BY_ID, "write_mode": "append"}, "would leave out the newer one"),
    ],
)
def test_what_could_not_be_resumed_or_deleted_is_refused_before_it_begins(
    one: Place, table: dict[str, Any], words: str
) -> None:
    configure(one, table)
    with pytest.raises(ConfigError, match=words):
        job(one)


def test_a_row_changed_under_its_timestamp_survives_where_all_it_holds_is_compared(one: Place) -> None:
    """A timestamp that says when a row was made, and not when it was changed."""
    configure(one, told_by="contents")

    def meddle() -> None:
        one.shop.execute("UPDATE orders SET customer = 'changed' WHERE id = 3")

    result = job(one, around=lambda eraser: Meddling(eraser, meddle))
    assert (result.cleaned[0].deleted, result.cleaned[0].reset, ids(one)) == (29, True, [3])
    job(one)
    assert (ids(one), arrived(one)) == ([], list(range(1, 31)))
    assert [row[1] for row in one.warehouse.rows() if row[0] == 3] == ["changed"]
    configure(one, {"write_mode": "append"}, told_by="contents")
    with pytest.raises(ConfigError, match="would leave out the newer one"):
        job(one)


@pytest.mark.parametrize("route", ["mariadb-duckdb", "postgres-postgres", "sqlite-delta"])
def test_a_row_changed_under_its_id_survives_and_is_merged_next_time(
    request: pytest.FixtureRequest, route: str
) -> None:
    """No column says so, and the mark is behind it."""
    place = far(request, route)
    configure(place, BY_ID)

    def meddle() -> None:
        place.shop.execute("UPDATE orders SET customer = 'changed' WHERE id IN (3, 29)")
        place.shop.execute("UPDATE orders SET note = '' WHERE id = 4")

    result = job(place, around=lambda eraser: Meddling(eraser, meddle))
    assert (result.cleaned[0].verified, result.cleaned[0].deleted, result.cleaned[0].reset) == (30, 27, True)
    assert ids(place) == [3, 4, 29]

    assert job(place).cleaned[0].deleted == 3
    assert (ids(place), arrived(place)) == ([], list(range(1, 31)))
    told = {row[0]: row[1::2] for row in place.warehouse.rows()}
    assert (told[3][0], told[4][1], told[29][0]) == ("changed", "", "changed")


def test_rows_changed_under_their_ids_come_again_whatever_came_between_two_halves(one: Place) -> None:
    """The first half cannot wait for what is not proved: the changed row would never come again."""
    configure(one, BY_ID)
    one.synced()
    assert victim(one.folder, STEPS["after it is written down that the counts agree"]) == -signal.SIGKILL
    one.shop.execute("UPDATE orders SET customer = 'changed' WHERE id = 3")
    one.shop.insert(5, first=100)
    one.synced()
    result = job(one)
    assert (result.finished_first[0].deleted, result.finished_first[0].reset) == (29, True)
    assert result.cleaned[0].deleted == 6
    assert (ids(one), arrived(one)) == ([], [*range(1, 31), *range(100, 105)])
    assert [row[1] for row in one.warehouse.rows() if row[0] == 3] == ["changed"]
    assert staged(one) == []


def test_where_rows_cannot_be_locked_a_job_by_id_is_refused(one: Place) -> None:
    configure(one, BY_ID)
    one.shop.execute("ALTER TABLE orders ENGINE=MyISAM")
    with pytest.raises(ConfigError, match="engine MyISAM locks no rows"):
        job(one)
    assert (len(ids(one)), staged(one)) == (30, [])

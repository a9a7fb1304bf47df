from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import tidegate as tidegate_package
from tests.archive.conftest import LONG_AGO, START, Site
from tidegate.archive.records import manifests, windows
from tidegate.cli import archiving
from tidegate.cli.root import tidegate
from tidegate.core.watermark import StreamId

Run = Callable[..., Result]


@pytest.fixture
def run(site: Site) -> Run:
    """Run `tidegate archive …` on the site's configuration, in this process."""

    def invoke(*args: str) -> Result:
        return CliRunner().invoke(
            tidegate, ["archive", args[0], "--config", str(site.config_file), *args[1:]]
        )

    return invoke


def _json(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_first_steps_of_the_older_tool(site: Site, run: Run) -> None:
    """Its commands in its order, its table, and the queries that people monitor it with."""
    site.add(30)

    before = _json(run("stats", "--json"))
    assert site.server.execute("SELECT to_regclass('des_archive_config')") == [(None,)]
    assert not (site.folder / "shards").exists()
    assert run("migrate", "--mode", "single").exit_code == 0
    after = _json(run("stats", "--json"))

    assert (before["files_pending"], before["begun"]) == (30, False)
    assert before["bytes_pending_estimated"] == sum(map(len, site.files.values()))
    assert (after["files_pending"], after["begun"], after["files_archived_total"]) == (0, True, 30)
    assert after["lag_seconds"] < 60
    site.demand_complete()
    [(until, lag_days, behind)] = site.server.execute(
        "SELECT archived_until, lag_days, "
        "(NOW() - INTERVAL '1 day' * lag_days) - archived_until AS lag_behind FROM des_archive_config"
    )
    assert (until, lag_days) == (site.mark, 7)
    assert behind < timedelta(minutes=1)
    [(pending,)] = site.server.execute(
        "SELECT COUNT(*) FROM files WHERE created_at > (SELECT archived_until FROM des_archive_config "
        "WHERE id = 1) AND created_at <= NOW() - INTERVAL '7 days'"
    )
    assert pending == 0


def test_the_lag_in_the_table_wins(site: Site, run: Run) -> None:
    site.server.execute(
        "CREATE TABLE des_archive_config (id INTEGER PRIMARY KEY, "
        "archived_until TIMESTAMP WITH TIME ZONE NOT NULL, lag_days INTEGER NOT NULL)"
    )
    site.server.execute("INSERT INTO des_archive_config VALUES (1, NOW() - INTERVAL '30 days', 20)")
    site.add(3, at=datetime.now(UTC) - timedelta(days=15))
    assert _json(run("run", "--json"))["files"] == 0
    site.server.execute("UPDATE des_archive_config SET lag_days = 10")
    assert _json(run("run", "--json"))["files"] == 3
    site.server.execute("UPDATE des_archive_config SET lag_days = -2")
    refused = run("run")
    assert refused.exit_code == 2
    assert "files that are still to come" in refused.stderr
    site.server.execute("UPDATE des_archive_config SET lag_days = 2147483647")
    assert "would never move" in run("run").stderr
    site.server.execute("UPDATE des_archive_config SET lag_days = 7, archived_until = 'infinity'")
    assert "is no date that files can have" in run("run").stderr
    for kind in ("timestamp(0) with time zone", "timestamp"):
        site.server.execute(
            "UPDATE des_archive_config SET archived_until = '2024-11-01';"
            f"ALTER TABLE des_archive_config ALTER archived_until TYPE {kind}"
        )
        rounded = run("run")
        assert rounded.exit_code == 2
        assert "does not hold every moment" in rounded.stderr


def test_a_window_is_told_as_lines_and_as_json(site: Site, run: Run) -> None:
    site.add(4)
    told = run("run")
    assert "archived 4 files" in told.output
    assert "archived until" in told.output
    site.add(2, at=datetime.now(UTC) - timedelta(days=7, seconds=2), prefix="more")
    assert _json(run("run", "--json"))["status"] == "success"


def test_a_program_archives_with_one_call(site: Site) -> None:
    site.configure(packer={"n_bits": 3})
    site.add(12)
    result = tidegate_package.Archive(site.config_file).run_cycle(workers=2, worker_id=1)
    assert (result.files, result.moved) == (12, True)
    site.demand_complete()
    assert tidegate_package.Archive(site.config).run_cycle(late=True).files == 0


# --- Moving the mark ----------------------------------------------------------------------------------


def test_the_mark_goes_back_and_nothing_is_packed_twice(site: Site, run: Run) -> None:
    site.add(10, at=datetime.now(UTC) - timedelta(days=7, hours=5))
    run("run")
    before = site.mark
    assert run("adjust", "--days-offset", "-1").exit_code == 0
    assert site.mark == before - timedelta(days=1)
    assert _json(run("run", "--json"))["already_archived"] == 10
    site.demand_complete()
    history = site.place.store().history(StreamId("archive", "files"))
    assert [event.data["act"] for event in history if event.kind == "manual"] == ["set"]


def test_past_the_cut_off_the_mark_goes_only_by_force_and_with_a_reason(site: Site, run: Run) -> None:
    run("init")
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).date().isoformat()
    refused = run("adjust", "--set-date", tomorrow)
    assert refused.exit_code == 2
    assert "past the cut-off" in refused.stderr
    assert run("adjust", "--set-date", tomorrow, "--force").exit_code == 2
    forced = run("adjust", "--set-date", tomorrow, "--force", "--reason", "the files are elsewhere")
    assert forced.exit_code == 0
    assert site.mark.date().isoformat() == tomorrow
    [event] = [e for e in site.place.store().history(StreamId("archive", "files")) if e.kind == "manual"]
    assert event.data["reason"] == "the files are elsewhere"


def test_going_forward_says_what_is_passed_over_and_late_finds_it(site: Site, run: Run) -> None:
    site.add(6)
    site.add(2, at=LONG_AGO + timedelta(days=9), prefix="after")
    run("init")
    told = run("adjust", "--set-date", "2024-11-25")
    assert "6 files passed over" in told.stderr
    assert _json(run("run", "--json"))["files"] == 2
    assert _json(run("stats", "--late", "--json"))["files_late"] == 6
    assert _json(run("run", "--late", "--json"))["files"] == 6
    site.demand_complete()


@pytest.mark.parametrize("options", [(), ("--days-offset", "1", "--set-date", "2024-11-25")])
def test_adjust_wants_one_of_two(run: Run, options: tuple[str, ...]) -> None:
    assert run("adjust", *options).exit_code == 2


@pytest.mark.parametrize("number", ["nan", "inf", "-nan", "0"])
def test_what_is_no_number_is_in_no_range(run: Run, number: str) -> None:
    for words in (("verify", "--sample"), ("run", "--mode", "continuous", "--interval")):
        refused = run(*words, number)
        assert refused.exit_code == 2
        assert "is not in the range" in refused.stderr


@pytest.mark.parametrize("days", ["nan", "inf", "-9e9"])
def test_adjust_goes_to_no_date_that_there_is_not(run: Run, days: str) -> None:
    run("init")
    refused = run("adjust", "--days-offset", days)
    assert refused.exit_code == 2
    assert "no such date" in refused.stderr


def test_a_table_that_was_archived_row_by_row_begins_where_that_ended(site: Site, run: Run) -> None:
    uids = site.add(10)
    fourth = LONG_AGO + timedelta(seconds=4)
    site.server.execute("UPDATE files SET archived = true WHERE created_at < %s", [fourth])
    site.server.execute("UPDATE files SET archived = true WHERE uid = %s", [uids[8]])

    assert run("init", "--from-column", "archived").exit_code == 0

    assert site.mark == fourth - timedelta(microseconds=1)
    assert _json(run("run", "--json"))["files"] == 6
    assert run("init").exit_code == 2


def test_an_archive_never_begins_past_the_cut_off(site: Site, run: Run) -> None:
    """Where a file may still appear with an older date, whoever archived until now row by row."""
    now = datetime.now(UTC)
    site.configure(watermark={"default_archived_until": None})
    site.add(3, at=now - timedelta(hours=2))

    def begun(*options: str) -> datetime:
        site.server.execute("DROP TABLE IF EXISTS des_archive_config")
        assert run("init", *options).exit_code == 0
        return site.mark

    refused = run("init", "--set-date", (now - timedelta(days=6)).isoformat())
    assert refused.exit_code == 2
    assert "past the cut-off" in refused.stderr
    assert begun() < now - timedelta(days=6, hours=23)
    site.server.execute("UPDATE files SET archived = true")
    assert begun("--from-column", "archived") < now - timedelta(days=6, hours=23)
    late = now - timedelta(days=7, hours=1)
    assert begun("--set-date", late.isoformat()) == late


# --- Late files ---------------------------------------------------------------------------------------


def test_late_files_are_found_and_packed_and_the_mark_stays(site: Site, run: Run) -> None:
    site.add(20)
    run("run")
    mark = site.mark
    site.add(3, at=LONG_AGO + timedelta(days=1), prefix="late")

    assert _json(run("run", "--json"))["files"] == 0  # nobody else would ever notice
    found = _json(run("stats", "--late", "--json"))
    assert {row["uid"] for row in found["files"]} == {"late-0", "late-1", "late-2"}
    before = site.mark
    done = _json(run("run", "--late", "--json"))

    assert (done["files"], done["already_archived"]) == (3, 20)
    assert site.mark == before > mark
    site.demand_complete()
    assert _json(run("stats", "--late", "--json"))["files_late"] == 0


# --- Verifying and extracting -------------------------------------------------------------------------


def test_everything_is_verified_and_comes_back_as_it_was(site: Site, run: Run, tmp_path: Path) -> None:
    site.add(25)
    run("run")
    verified = _json(run("verify", "--json"))
    assert (verified["files"], verified["damaged"], verified["unreferenced"]) == (25, [], [])
    assert _json(run("verify", "--sample", "0.0001", "--json"))["shards"] == 1  # none would say nothing
    to = tmp_path / "back"
    assert run("extract", "--all", "--to", str(to)).exit_code == 0
    assert {path.name: path.read_bytes() for path in to.iterdir()} == site.files
    assert run("extract", "--all", "--to", str(to)).exit_code == 0  # the same once more does no harm


def test_extract_takes_uids_and_stays_in_its_folder(site: Site, run: Run, tmp_path: Path) -> None:
    content = {"../../escape": b"1", "/etc/passwd": b"2", "..": b"3", "plain": b"4"}
    site.insert([(uid, LONG_AGO, str(site.write(uid, data))) for uid, data in content.items()])
    run("run")
    inside = tmp_path / "a" / "b"
    assert run("extract", *content, "--to", str(inside)).exit_code == 0
    assert sorted(path.read_bytes() for path in inside.iterdir()) == [b"1", b"2", b"3", b"4"]
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]
    assert run("extract", "nowhere", "--to", str(inside)).exit_code == 2
    (inside / "plain").write_bytes(b"mine")
    assert run("extract", "plain", "--to", str(inside)).exit_code == 1
    assert (inside / "plain").read_bytes() == b"mine"
    (inside / "plain").unlink()
    for outside in (tmp_path / "victim", tmp_path / "nothing"):  # links that lead out, one of them to nowhere
        (inside / "plain").symlink_to(outside)
        (tmp_path / "victim").write_bytes(b"not mine")
        assert run("extract", "plain", "--to", str(inside)).exit_code == 1
        assert (tmp_path / "victim").read_bytes() == b"not mine"
        assert not (tmp_path / "nothing").exists()
        (inside / "plain").unlink()


def test_a_flipped_bit_in_any_region_is_found_by_both(site: Site, run: Run, tmp_path: Path) -> None:
    site.configure(packer={"n_bits": 0})
    site.insert([("only", LONG_AGO, str(site.write("only", b"some content " * 20)))])
    run("run")
    [manifest] = manifests(site.place)
    path = site.folder / "shards" / manifest.shards[0].key
    whole = path.read_bytes()
    regions = {"header": 2, "name": 31, "content": 100, "comment": len(whole) - 3, "end": len(whole) - 20}
    regions |= {
        "index": whole.rindex(b"PAR1") - 10,
        "directory": whole.rindex(b"PK\x01\x02") + 5,
        "end record": whole.rindex(b"PK\x05\x06") + 9,
    }
    for name, place in regions.items():
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        assert run("verify").exit_code == 4, name
        assert run("extract", "only", "--to", str(tmp_path / name)).exit_code == 4, name
        assert not list((tmp_path / name).glob("*")) if (tmp_path / name).exists() else True
    path.unlink()
    assert "gone" in run("verify").stderr
    assert run("extract", "only", "--to", str(tmp_path)).exit_code == 4


def test_windows_that_are_gone_do_not_pass_for_a_sound_archive(site: Site, run: Run) -> None:
    site.add(6)
    run("run")
    site.add(6, at=LONG_AGO + timedelta(days=1), prefix="late")
    run("run", "--late")
    assert run("verify").exit_code == 0
    first, second = (site.folder / "shards" / folder.manifest_key for folder in windows(site.place))
    whole = first.read_bytes()
    first.unlink()
    gone = run("verify", "--json")
    assert gone.exit_code == 4
    [record] = json.loads(gone.stdout)["records"]
    assert "its 6 files do not count" in record["problem"]
    assert run("extract", "--all", "--to", str(site.folder / "back")).exit_code == 4
    assert len(list((site.folder / "back").iterdir())) == 6
    first.write_bytes(whole[:-9])
    refused = run("extract", "--all", "--to", str(site.folder / "back"))
    assert refused.exit_code == 4
    assert "the manifest is damaged" in refused.stderr
    damaged = run("verify", "--json")
    assert damaged.exit_code == 4
    assert json.loads(damaged.stdout)["files"] == 6  # the other window is looked at all the same
    first.write_bytes(second.read_bytes())
    assert "another manifest" in run("verify").stderr
    state = site.folder / "shards/_tidegate/state/watermarks/archive~files.json"
    state.write_bytes(state.read_bytes()[:-9])
    assert f"{state}: " in run("verify").stderr
    shutil.rmtree(site.folder / "shards/_tidegate")
    assert "no manifest names any of them" in run("verify").stderr


# --- The hybrid ---------------------------------------------------------------------------------------


def test_only_what_lies_in_shards_is_marked_archived(site: Site, run: Run) -> None:
    uids = site.add(30)
    site.path(uids[7]).unlink()
    site.configure(packer={"on_problem": {"missing": "skip"}})
    run("run")
    site.add(2, at=LONG_AGO + timedelta(days=1), prefix="late")

    assert run("mark-archived", "--batch", "7").exit_code == 0

    left = {uid for (uid,) in site.server.execute("SELECT uid FROM files WHERE NOT archived")}
    assert left == {uids[7], "late-0", "late-1"}
    assert "0 rows marked, 0 looked at" in run("mark-archived").output
    run("run", "--late")
    assert "2 rows marked" in run("mark-archived").output


def test_rows_that_others_hold_are_marked_the_next_time(site: Site, run: Run) -> None:
    uids = site.add(10)
    run("run")
    with closing(site.server.connect()) as other:
        other.cursor().execute("SELECT 1 FROM files WHERE uid = %s FOR UPDATE", [uids[3]])
        held = run("mark-archived")
    assert held.exit_code == 1
    assert "1 row held" in held.stderr
    assert run("mark-archived").exit_code == 0
    assert site.server.execute("SELECT COUNT(*) FROM files WHERE NOT archived") == [(0,)]


def test_where_uids_repeat_the_row_that_was_skipped_is_not_marked(site: Site, run: Run) -> None:
    site.server.execute("ALTER TABLE files DROP CONSTRAINT files_pkey")
    [uid] = site.add(1)
    other = site.folder / "other"
    other.write_bytes(b"another content")
    site.insert([(uid, LONG_AGO + timedelta(days=1), str(other))])
    site.configure(packer={"on_problem": {"duplicate": "skip"}})
    run("run")
    run("mark-archived")
    assert site.server.execute("SELECT file_location FROM files WHERE NOT archived") == [(str(other),)]


def test_a_row_that_leads_to_another_file_by_now_is_not_marked(site: Site, run: Run) -> None:
    """Its uid lies in a shard, and the file that it names was left out."""
    uid, other = site.add(2)
    run("run")
    elsewhere = site.folder / "elsewhere"
    elsewhere.write_bytes(b"another content")
    change = "UPDATE files SET created_at = now() - interval '10 days', file_location = %s WHERE uid = %s"
    site.server.execute(change, [str(elsewhere), uid])
    run("adjust", "--days-offset", "-20")
    site.configure(packer={"on_problem": {"duplicate": "skip"}})
    assert _json(run("run", "--json"))["skipped"] == 1
    run("mark-archived")
    assert site.server.execute("SELECT uid FROM files WHERE archived") == [(other,)]


def test_all_ways_are_really_run(site: Site, run: Run) -> None:
    found = _json(run("compare", "--records", "300", "--commit-every", "100", "--json"))
    assert found["watermark"]["updates"] == 1
    assert found["watermark"]["files"] == 300
    for way in ("per_record", "per_batch"):
        assert found[way]["updates"] == found[way]["files"] == 300
        assert found[way]["times_less_wal"] > 2
    assert site.server.execute("SELECT 1 FROM pg_namespace WHERE nspname LIKE 'tidegate_compare%%'") == []
    assert site.server.execute("SELECT to_regclass('des_archive_config')") == [(None,)]


# --- For ever -----------------------------------------------------------------------------------------


def test_continuous_mode_serves_metrics_and_ends_cleanly(site: Site) -> None:
    site.add(12)
    command = [sys.executable, "-m", "tidegate.cli", "archive", "run", "--config", str(site.config_file)]
    options = ["--mode", "continuous", "--interval", "1", "--metrics-port", "0"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = re.search(r"http://[\d.:]+", process.stdout.readline())
        assert address is not None
        metrics = _until(
            lambda: _metrics(address[0]), lambda found: found.get("des_migration_files_total") == 12
        )
        assert metrics["des_migration_files_pending"] == 0
        assert metrics["des_watermark_lag_seconds"] < 60
        assert metrics["des_migration_duration_seconds"] > 0
        assert _get(f"{address[0]}/healthz") == (200, "ok\n")
        site.server.execute("ALTER TABLE files RENAME TO elsewhere")
        _until(lambda: _get(f"{address[0]}/healthz"), lambda answer: answer[0] == 503)
        site.server.execute("ALTER TABLE elsewhere RENAME TO files")
        _until(lambda: _get(f"{address[0]}/healthz"), lambda answer: answer[0] == 200)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    site.demand_complete()


def _until(look: Callable[[], Any], good: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + 60
    while not good(found := look()):
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
    return found


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def _metrics(address: str) -> dict[str, float]:
    lines = [line for line in _get(f"{address}/metrics")[1].splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.split() for line in lines)}


def test_after_a_failure_it_waits_longer_each_time_and_never_longer_than_the_interval() -> None:
    assert [archiving._pause(3600, failures) for failures in (0, 1, 2, 3, 50)] == [3600, 5, 10, 20, 900]  # noqa: SLF001
    assert [archiving._pause(7, failures) for failures in (0, 1, 2)] == [7, 5, 7]  # noqa: SLF001


def test_one_cycle_leaves_its_metrics_in_a_file(site: Site, run: Run) -> None:
    site.add(3)
    file = site.folder / "metrics" / "archive.prom"
    assert run("run", "--metrics-file", str(file)).exit_code == 0
    assert "des_migration_files_total 3\n" in file.read_text()
    site.path("file-0").write_bytes(b"changed since")
    site.move_mark(START)
    assert run("run", "--metrics-file", str(file)).exit_code == 1
    text = file.read_text()
    assert "des_migration_failures_total 1\n" in text
    assert "des_migration_files_pending 3\n" in text


# --- Bad input ----------------------------------------------------------------------------------------


def test_mistakes_are_said_in_words_and_without_secrets(site: Site, run: Run) -> None:
    secret = site.server.password
    site.configure(database={"table_name": "fils"})
    wrong_table = run("run")
    assert wrong_table.exit_code == 1
    assert "`files`" in wrong_table.stderr
    site.configure(database={"uid_column": "uuid"})
    assert "did you mean `uid`" in run("run").stderr
    site.configure(database={"created_at_column": "archived"})
    assert run("run").exit_code == 2
    site.configure(database={"url": site.server.url.replace(secret, "no-secret-of-ours")})
    refused = run("run")
    assert refused.exit_code == 5
    assert run("run", "--workers", "2", "--worker-id", "2").exit_code == 2
    missing = CliRunner().invoke(tidegate, ["archive", "run", "--config", str(site.folder / "nowhere.yaml")])
    assert missing.exit_code == 2
    shown = "".join(result.output for result in (wrong_table, refused, missing))
    assert secret not in shown
    assert "no-secret-of-ours" not in shown
    assert "Traceback" not in shown


def test_an_output_folder_that_cannot_be_written_is_named(site: Site, run: Run) -> None:
    if os.geteuid() == 0:
        (site.folder / "shards").write_text("a file is in the way")
    else:
        site.configure(packer={"output_dir": "/proc/nowhere"})
    refused = run("run")
    assert refused.exit_code == 1
    assert "Traceback" not in refused.output

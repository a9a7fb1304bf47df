from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.cli.conftest import Run, Shop
from tidegate.core.watermark import StreamId
from tidegate.state.process import this_process


def test_get_as_json_has_the_agreed_form(shop: Shop, run: Run) -> None:
    shop.extract(1, rows=7)
    shop.load()
    shop.extract(2, rows=3)
    result = run("watermark", "get", "-t", "orders", "--json")
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    assert data["table_name"] == "orders"
    assert data["pipeline"] == "shop"
    assert data["version"] == shop.store.read(StreamId("shop", "orders")).version
    assert data["extracted"] == {
        "timestamp": "2025-08-01T14:00:00",
        "id": 102,
        "rows_total": 10,
        "rows_last_run": 3,
        "at": data["extracted"]["at"],
        "status": "success",
        "lossy": {},
    }
    assert data["loaded"] == {"rows_total": 7, "at": data["loaded"]["at"], "status": "pending"}
    assert [Path(key).suffix for key in data["pending_files"]] == [".parquet"]
    assert {"last_error", "manual", "created_at", "updated_at"} <= data.keys()
    assert "loaded_files" not in data


def test_get_shows_loaded_files_from_the_history(shop: Shop, run: Run) -> None:
    shop.extract(1)
    [segment] = shop.mark().pending
    shop.load()
    data = json.loads(run("watermark", "get", "-t", "orders", "--json", "--show-files").stdout)
    assert data["loaded_files"] == [segment.key]
    assert segment.key in run("watermark", "get", "-t", "orders", "--show-files").stdout


def test_get_of_a_table_that_never_ran_says_so(run: Run) -> None:
    assert "has never run" in run("watermark", "get", "-t", "orders").stdout
    data = json.loads(run("watermark", "get", "-t", "orders", "--json").stdout)
    assert (data["version"], data["extracted"]["status"]) == (0, "never")


def test_an_unknown_table_is_refused_with_the_nearest_spelling(run: Run) -> None:
    result = run("watermark", "get", "-t", "ordres")
    assert result.exit_code == 2
    assert "did you mean `orders`?" in result.stderr


def test_get_names_who_holds_the_table(shop: Shop, run: Run) -> None:
    shop.extract(1)
    with shop.hold():
        data = json.loads(run("watermark", "get", "-t", "orders", "--json").stdout)
    assert data["held_by"].startswith("a test (process ")


def test_list_shows_tables_that_never_ran_too(shop: Shop, run: Run) -> None:
    shop.extract(1)
    lines = run("watermark", "list").stdout.splitlines()
    assert len(lines) == 4
    assert "2025-08-01 13:00:00 / 101" in lines[1]
    assert "never ran" in lines[2]
    assert [item["table_name"] for item in json.loads(run("watermark", "list", "--json").stdout)] == [
        "orders",
        "customers",
        "countries",
    ]


def test_list_leaves_out_streams_beside_a_table_that_hold_nothing(shop: Shop, run: Run) -> None:
    shop.extract(1, table="customers@ranges")
    with shop.hold("orders@ranges"):
        pass
    tables = [item["table_name"] for item in json.loads(run("watermark", "list", "--json").stdout)]
    assert tables == ["orders", "customers", "customers@ranges", "countries"]


def test_values_that_became_null_are_told_of_the_run_and_of_all_runs(shop: Shop, run: Run) -> None:
    shop.extract(1, lossy=(("born", 2), ("died", 1)))
    shop.extract(2, lossy=(("born", 1),))
    state = json.loads(run("watermark", "get", "-t", "orders", "--json").stdout)
    assert state["extracted"]["lossy"] == {"born": 3, "died": 1}
    assert "born 3, died 1: values that did not fit" in run("watermark", "get", "-t", "orders").stdout
    history = run("watermark", "history", "-t", "orders").stdout
    assert "3 values did not fit and became NULL" in history
    assert "1 value did not fit and became NULL" in history


def test_history_of_a_table_that_never_ran_says_so(run: Run) -> None:
    assert run("watermark", "history", "-t", "orders").stdout == "shop/orders has never run\n"


def test_history_tells_runs_loads_and_changes_by_hand(shop: Shop, run: Run) -> None:
    run_id = shop.extract(1)
    shop.load()
    run("watermark", "reset", "-t", "orders", "--yes", "--reason", "a fresh start")
    text = run("watermark", "history", "-t", "orders").stdout
    assert run_id in text
    assert "10 rows in 1 file" in text
    assert "reset: a fresh start" in text
    kinds = [
        event["kind"] for event in json.loads(run("watermark", "history", "-t", "orders", "--json").stdout)
    ]
    assert kinds == ["planned", "extracted", "loaded", "manual"]


# --- Changes by hand -----------------------------------------------------------


def test_reset_starts_a_table_and_the_streams_beside_it_over(shop: Shop, run: Run) -> None:
    shop.extract(1)
    shop.extract(1, table="orders@ranges")
    shop.extract(1, table="customers")
    assert run("watermark", "reset", "-p", "shop", "-t", "orders", "--yes").exit_code == 0
    for table in ("orders", "orders@ranges"):
        mark = shop.mark(table)
        assert mark.extracted.position is None
        assert mark.pending == ()
        assert mark.generation > 1
    assert shop.mark("customers").extracted.position is not None


def test_reset_asks_and_without_a_terminal_wants_a_yes(shop: Shop, run: Run) -> None:
    shop.extract(1)
    result = run("watermark", "reset", "-t", "orders")
    assert result.exit_code == 2
    assert "--yes" in result.stderr
    assert shop.mark().extracted.position is not None


def test_reset_wants_to_know_what(run: Run) -> None:
    assert run("watermark", "reset", "--yes").exit_code == 2


def test_reset_is_refused_while_a_run_holds_the_table(shop: Shop, run: Run) -> None:
    shop.extract(1)
    shop.extract(1, table="orders@ranges")
    with shop.hold("orders@ranges"):
        result = run("watermark", "reset", "-t", "orders", "--yes")
    assert result.exit_code == 3
    assert "held by a test (process " in result.stderr
    assert shop.mark("orders").extracted.position is not None  # all of it, or nothing


@pytest.mark.parametrize("flags", [(), ("--extracted-only",), ("--loaded-only",)])
def test_reset_of_a_table_that_is_appended_to_warns_of_doubles(
    shop: Shop, run: Run, flags: tuple[str, ...]
) -> None:
    shop.extract(1)
    shop.load()
    text = (shop.root / "config/pipelines/shop.yml").read_text()
    shop.pipeline(text.replace("updated_at\n", "updated_at\n    write_mode: append\n", 1))
    result = run("watermark", "reset", "-t", "orders", "--yes", *flags)
    assert result.exit_code == 0
    assert (
        "shop/orders is appended to: empty the table in the warehouse first, or rows double" in result.stderr
    )


def test_reset_of_a_table_that_was_never_looked_at_knows_no_key(shop: Shop, run: Run) -> None:
    run("watermark", "set", "-t", "orders", "--timestamp", "2025-01-05")
    result = run("watermark", "reset", "-t", "orders", "--yes")
    assert "shop/orders is appended to if it has no primary key: empty the table" in result.stderr


@pytest.mark.parametrize("flag", ["--extracted-only", "--mysql-only"])
def test_reset_extracted_only_keeps_what_is_pending(shop: Shop, run: Run, flag: str) -> None:
    shop.extract(1)
    assert run("watermark", "reset", "-t", "orders", flag, "--force").exit_code == 0
    mark = shop.mark()
    assert mark.extracted.position is None
    assert len(mark.pending) == 1


@pytest.mark.parametrize("flag", ["--loaded-only", "--redshift-only"])
def test_reset_loaded_only_loads_again_what_still_lies_in_staging(shop: Shop, run: Run, flag: str) -> None:
    shop.extract(1, rows=7)
    shop.extract(2, rows=5)
    first, second = shop.mark().pending
    shop.load()
    shop.staging.delete([first.key])
    result = run("watermark", "reset", "-t", "orders", flag, "--yes")
    assert result.exit_code == 0
    assert "1 file with 5 rows will be loaded again" in result.stdout
    assert "1 loaded file with 7 rows is gone from staging" in result.stderr
    mark = shop.mark()
    assert mark.pending == (second,)
    assert mark.generation > 1
    assert dict(mark.schemas).keys() == {second.schema}
    assert mark.extracted.position is not None


def test_reset_loaded_only_forgets_what_came_before_a_reset(shop: Shop, run: Run) -> None:
    shop.extract(1)
    shop.load()
    run("watermark", "reset", "-t", "orders", "--yes")
    shop.extract(2)
    [last] = shop.mark().pending
    shop.load()
    run("watermark", "reset", "-t", "orders", "--loaded-only", "--yes")
    assert shop.mark().pending == (last,)


def test_reset_loaded_only_forgets_what_was_read_again_after_an_import(shop: Shop, run: Run) -> None:
    shop.extract(1)
    [first] = shop.mark().pending
    shop.load()
    backup = shop.root / "backup.json"
    run("watermark", "export", str(backup), "--all")
    shop.extract(2)
    shop.load()
    run("watermark", "import", str(backup), "--all", "--yes")
    shop.extract(2)
    [again] = shop.mark().pending
    shop.load()
    run("watermark", "reset", "-t", "orders", "--loaded-only", "--yes")
    assert shop.mark().pending == (first, again)


def test_rollback_to_the_time_after_a_reset_finds_the_beginning(shop: Shop, run: Run) -> None:
    shop.extract(1)
    shop.load()
    run("watermark", "reset", "-t", "orders", "--extracted-only", "--yes")
    afterwards = datetime.now(UTC).isoformat()
    run("watermark", "set", "-t", "orders", "--timestamp", "2025-08-01 14:00", "--reason", "ahead")
    result = run("watermark", "rollback", "-t", "orders", "--to", afterwards, "--reason", "back")
    assert result.exit_code == 0, result.stderr
    assert shop.mark().extracted.position is None


def test_rollback_puts_the_mark_back_to_a_run(shop: Shop, run: Run) -> None:
    first = shop.extract(1)
    after_first = shop.mark().extracted.position
    shop.extract(2)
    result = run("watermark", "rollback", "-t", "orders", "--to", first, "--reason", "bad rows")
    assert result.exit_code == 0
    mark = shop.mark()
    assert mark.extracted.position == after_first
    assert mark.manual == "bad rows"


def test_rollback_puts_the_mark_back_to_a_time(shop: Shop, run: Run) -> None:
    shop.extract(1)
    after_first = shop.mark()
    shop.extract(2)
    to = after_first.updated_at.isoformat()
    assert run("watermark", "rollback", "-t", "orders", "--to", to, "--reason", "why").exit_code == 0
    assert shop.mark().extracted.position == after_first.extracted.position


@pytest.mark.parametrize("to", ["r99", "2001-01-01", "yesterday"])
def test_rollback_to_what_the_history_does_not_know_changes_nothing(shop: Shop, run: Run, to: str) -> None:
    shop.extract(1)
    before = shop.mark()
    result = run("watermark", "rollback", "-t", "orders", "--to", to, "--reason", "why")
    assert result.exit_code == 2
    assert shop.mark() == before


def test_rollback_wants_a_reason(shop: Shop, run: Run) -> None:
    first = shop.extract(1)
    assert run("watermark", "rollback", "-t", "orders", "--to", first).exit_code == 2
    assert run("watermark", "rollback", "-t", "orders", "--to", first, "--reason", " ").exit_code == 2


# --- Check, export, import -----------------------------------------------------


def test_check_finds_nothing_wrong_with_a_sound_state(shop: Shop, run: Run) -> None:
    shop.extract(1)
    result = run("watermark", "check")
    assert result.exit_code == 0
    assert "nothing wrong" in result.stdout


def test_check_finds_pending_files_that_are_gone(shop: Shop, run: Run) -> None:
    shop.extract(1)
    [segment] = shop.mark().pending
    shop.staging.delete([segment.key])
    result = run("watermark", "check")
    assert result.exit_code == 4
    assert f"{segment.key} is gone" in result.stderr
    assert "tidegate watermark reset -p shop -t orders" in result.stderr


def test_check_says_once_that_a_folder_of_pending_files_is_gone(shop: Shop, run: Run) -> None:
    for hours in (1, 2, 3):
        shop.extract(hours)
    first, second, third = shop.mark().pending
    shop.staging.delete([first.key, second.key, third.key])
    [finding] = json.loads(run("watermark", "check", "--json").stdout)
    assert finding["problem"] == f"the pending file {first.key} is gone, and so are 2 others"
    assert finding["repair"].startswith("put the files back, or read the table again")


def test_check_finds_a_mark_in_the_future(shop: Shop, run: Run) -> None:
    shop.extract(24 * 365 * 100)
    result = run("watermark", "check", "--json")
    assert result.exit_code == 4
    [finding] = json.loads(result.stdout)
    assert "lies in the future" in finding["problem"]
    assert finding["repair"].startswith("tidegate watermark rollback -p shop -t orders")


def test_check_finds_damaged_records_and_reset_repairs_them(shop: Shop, run: Run) -> None:
    shop.extract(1)
    [record] = (shop.root / "state/watermarks").glob("*.json")
    record.write_text("{ not json")
    result = run("watermark", "check")
    assert result.exit_code == 4
    assert str(record) in result.stderr
    for flags in ((), ("--json",)):
        got = run("watermark", "get", *flags)
        assert got.exit_code == 1
        assert str(record) in got.stderr
        assert "orders" not in got.stdout  # it is not one that has never run
        assert "customers" in got.stdout
    reset = run("watermark", "reset", "-t", "orders", "--yes")
    assert reset.exit_code == 0
    [aside] = record.parent.glob("*.damaged-*")
    assert str(aside) in reset.stderr
    assert run("watermark", "check").exit_code == 0


def test_export_and_import_bring_a_lost_state_back(shop: Shop, run: Run) -> None:
    shop.extract(1)
    shop.extract(1, table="orders@ranges")
    saved = shop.mark()
    backup = shop.root / "backup.json"
    assert run("watermark", "export", str(backup), "--all").exit_code == 0
    shop.extract(5)
    runs = shop.mark().runs
    assert run("watermark", "import", str(backup), "--all", "--yes", "--reason", "restored").exit_code == 0
    mark = shop.mark()
    assert mark.extracted == saved.extracted
    assert mark.pending == saved.pending
    assert mark.runs == runs  # never back, so that nothing old can pass for new
    assert mark.manual == "restored"
    [*_, event] = shop.store.history(StreamId("shop", "orders"))
    assert (event.kind, event.data["act"], event.data["reason"]) == ("manual", "import", "restored")


@pytest.mark.parametrize("mode", ["append", "merge"])
def test_import_of_an_older_mark_warns_of_doubles_where_rows_are_appended(
    shop: Shop, run: Run, mode: str
) -> None:
    text = (shop.root / "config/pipelines/shop.yml").read_text()
    shop.pipeline(text.replace("updated_at\n", f"updated_at\n    write_mode: {mode}\n", 1))
    shop.extract(1)
    backup = shop.root / "backup.json"
    run("watermark", "export", str(backup), "--all")
    assert "twice" not in run("watermark", "import", str(backup), "--all", "--yes").stderr
    shop.extract(2)
    result = run("watermark", "import", str(backup), "--all", "--yes")
    assert result.exit_code == 0
    assert ("in the warehouse twice" in result.stderr) == (mode == "append")


def test_a_table_that_only_the_state_knows_can_be_reset_and_restored(shop: Shop, run: Run) -> None:
    shop.extract(1, table="former")
    backup = shop.root / "backup.json"
    run("watermark", "export", str(backup), "--all")
    reset = run("watermark", "reset", "-t", "former", "--yes")
    assert reset.exit_code == 0, reset.stderr
    restored = run("watermark", "import", str(backup), "--all", "--yes")
    assert restored.exit_code == 0, restored.stderr
    assert shop.mark("former").extracted.position is not None


def test_import_is_refused_while_a_run_holds_a_table(shop: Shop, run: Run) -> None:
    shop.extract(1)
    backup = shop.root / "backup.json"
    run("watermark", "export", str(backup), "--all")
    with shop.hold():
        assert run("watermark", "import", str(backup), "--all", "--yes").exit_code == 3


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"tidegate_backup": 99, "streams": []}'])
def test_import_refuses_what_is_no_backup(shop: Shop, run: Run, text: str) -> None:
    file = shop.root / "backup.json"
    file.write_text(text)
    assert run("watermark", "import", str(file), "--all", "--yes").exit_code == 2


def test_a_dead_process_holds_nothing_and_check_says_so(shop: Shop, run: Run) -> None:
    shop.extract(1)
    with subprocess.Popen(["true"]) as gone:
        pass
    dead = replace(this_process("a killed sync"), pid=gone.pid, process_start="long ago")
    stream = StreamId("shop", "orders")
    shop.store.acquire(stream, dead, now=datetime.now(UTC), ttl=timedelta(hours=1), nonce="n")
    assert json.loads(run("watermark", "get", "-t", "orders", "--json").stdout)["held_by"] is None
    result = run("watermark", "check")
    assert result.exit_code == 4
    assert "a process that is dead: a killed sync" in result.stderr
    assert "tidegate sync -p shop -t orders" in result.stderr
    assert run("watermark", "reset", "-t", "orders", "--yes").exit_code == 0


def test_a_no_changes_nothing(shop: Shop, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.extract(1)
    before = shop.mark()
    monkeypatch.setattr("tidegate.cli.choosing._can_ask", lambda: True)
    result = run("watermark", "reset", "-t", "orders", input="n\n")
    assert result.exit_code == 1
    assert "nothing was changed" in result.stderr
    assert shop.mark() == before
    assert run("watermark", "reset", "-t", "orders", input="y\n").exit_code == 0
    assert shop.mark() != before

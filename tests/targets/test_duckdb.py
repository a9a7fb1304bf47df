"""DuckDB as a target."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import pytest

from tidegate.core.errors import ConnectError, IncompatibleTable, LoginRefused, TargetError
from tidegate.core.strategies import WriteMode
from tidegate.core.types import DataType, Kind
from tidegate.targets.contract import Target
from tidegate.targets.duckdb import DuckDb, DuckDbTarget, declared_type
from tidegate.testing.targets import (
    ORDERS,
    Stage,
    TargetContract,
    load_process,
    orders,
    read_rows,
    schema_of,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "main.duckdb"  # named like the schema, which makes `main.orders` ambiguous


@pytest.fixture
def target(path: Path) -> DuckDbTarget:
    return DuckDbTarget(path)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    folder = tmp_path / "stage"
    folder.mkdir()
    return Stage(folder)


class TestContract(TargetContract):
    renderings: ClassVar[Mapping[str, str]] = {
        "-0": "-0.0",
        "0.00001": ".00001",
        "NaN": "nan",
        "Infinity": "inf",
        "-Infinity": "-inf",
        "\\x": "",
        "\\x00ff5c22270a": "\\x00\\xFF\\x5C\\x22\\x27\\x0A",
        "0001-12-31 BC": "0001-12-31 (BC)",
        "0001-01-01 00:00:00 BC": "0001-01-01 (BC) 00:00:00",
        "0001-01-01 00:00:00.000001+00 BC": "0001-01-01 (BC) 00:00:00.000001+00",
    }

    @pytest.fixture
    def target(self, path: Path) -> Target:
        return DuckDbTarget(path)

    def count_beside(self, target: Target, name: str) -> int:
        assert isinstance(target, DuckDbTarget)
        assert isinstance(target.database, DuckDb)
        return counted(target.database.path, name)


def counted(path: Path, name: str) -> int:
    """The rows that another connection of this process sees; it may have to wait until one has closed."""
    while True:
        try:
            [(count,)] = execute(path, f"SELECT count(*) FROM {name}")
        except duckdb.BinderException as error:
            if "Unique file handle conflict" not in str(error):
                raise
        else:
            return int(count)


def execute(path: Path, *statements: str) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    with closing(duckdb.connect(path)) as connection:
        for statement in statements:
            rows = connection.execute(statement).fetchall()
    return rows


# --- one process at a time ------------------------------------------------------

_HOLDER = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('held', flush=True); sys.stdin.read()"


@contextmanager
def held(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process has the file open."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_file_that_another_process_holds_is_waited_for(path: Path, stage: Stage) -> None:
    target = DuckDbTarget(path, wait=20)
    target.prepare(orders(), ORDERS)
    with held(path) as holder:
        threading.Timer(0.5, holder.kill).start()
        assert target.load(orders(), [stage.segment(ORDERS, [(1, 1, "a")])], generation=1, fence=1) == 1


def test_a_file_that_another_process_keeps_is_an_error_that_names_it(path: Path) -> None:
    target = DuckDbTarget(path, wait=0.3)
    target.prepare(orders(), ORDERS)
    with held(path) as holder:
        name = Path(f"/proc/{holder.pid}/comm").read_text().strip()
        for attempt in (lambda: target.count("orders"), lambda: target.prepare(orders(name="b"), ORDERS)):
            began = time.monotonic()
            with pytest.raises(ConnectError) as caught:
                attempt()
            assert time.monotonic() - began >= 0.3
            assert f"process {holder.pid} ({name}) holds the DuckDB file" in str(caught.value)
            assert caught.value.exit_code == 5
    assert target.count("orders") == 0


def test_the_file_is_free_between_operations(path: Path, target: DuckDbTarget) -> None:
    target.prepare(orders(), ORDERS)
    with held(path):
        pass


def test_a_connection_of_this_process_is_no_obstacle(path: Path, target: DuckDbTarget, stage: Stage) -> None:
    target.prepare(orders(), ORDERS)
    with closing(duckdb.connect(path)) as connection:
        assert target.load(orders(), [stage.segment(ORDERS, [(1, 1, "a")])], generation=1, fence=1) == 1
        assert target.count("orders") == 1
        assert connection.execute("SELECT count(*) FROM orders").fetchall() == [(1,)]


def test_a_failed_load_leaves_no_transaction_to_a_shared_connection(
    path: Path, target: DuckDbTarget, stage: Stage
) -> None:
    table = orders(WriteMode.MERGE)
    target.prepare(table, ORDERS)
    nullable = schema_of(id=Kind.INT64, at=Kind.INT64, note=Kind.TEXT)
    with closing(duckdb.connect(path)):
        with pytest.raises(TargetError, match="1 rows have no value"):
            target.load(table, [stage.segment(nullable, [(None, 1, "a")])], generation=1, fence=1)
        assert target.load(table, [stage.segment(ORDERS, [(1, 1, "a")])], generation=1, fence=1) == 1


def test_a_file_opened_here_for_reading_only_is_an_error_in_words(path: Path, target: DuckDbTarget) -> None:
    target.prepare(orders(), ORDERS)
    with closing(duckdb.connect(path, read_only=True)):
        assert target.count("orders") == 0
        with pytest.raises(ConnectError, match="different configuration"):
            target.prepare(orders(name="other"), ORDERS)


# --- paths --------------------------------------------------------------------------


def test_looking_creates_no_file(path: Path, target: DuckDbTarget) -> None:
    assert target.action(orders(), ORDERS) == "create table orders, then append"
    assert target.last_run(orders().stream) == 0
    assert not path.exists()


def test_a_missing_folder_is_an_error_in_words(tmp_path: Path) -> None:
    target = DuckDbTarget(tmp_path / "nowhere" / "x.duckdb")
    for attempt in (lambda: target.action(orders(), ORDERS), lambda: target.prepare(orders(), ORDERS)):
        with pytest.raises(ConnectError, match="nowhere does not exist"):
            attempt()


def test_what_is_not_a_duckdb_file_is_an_error_in_words(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("not a database " * 1000)
    for path in (other, tmp_path):
        with pytest.raises(ConnectError, match="cannot be opened"):
            DuckDbTarget(path).count("orders")
    with pytest.raises(LoginRefused) as refused:  # trying again makes no database of it
        DuckDbTarget(other).count("orders")
    assert refused.value.hint == "move what lies there away, or correct the target's `path`"


@pytest.mark.parametrize("folder", ["year=2025", "a[1]*?{b}", "it's; here"])
def test_folders_of_segments_may_have_any_name(target: DuckDbTarget, tmp_path: Path, folder: str) -> None:
    odd = tmp_path / folder
    odd.mkdir()
    stage = Stage(odd)
    target.prepare(orders(), ORDERS)
    staged = [stage.segment(ORDERS, [(n, n, "x")]) for n in (1, 2)]
    assert target.load(orders(), staged, generation=1, fence=1) == 2


# --- tables that somebody else made ------------------------------------------------------


def test_a_table_with_constraints_and_defaults_keeps_them(
    path: Path, target: DuckDbTarget, stage: Stage
) -> None:
    execute(
        path,
        "CREATE TABLE orders (id BIGINT PRIMARY KEY, \"at\" BIGINT, note VARCHAR CHECK (note <> 'bad'), "
        "kept VARCHAR DEFAULT 'default')",
        "CREATE INDEX by_note ON orders (note)",
    )
    table = orders(WriteMode.MERGE)
    target.prepare(table, ORDERS)
    target.load(table, [stage.segment(ORDERS, [(1, 1, "a"), (2, 1, "b")])], generation=1, fence=1)
    execute(path, "UPDATE orders SET kept = 'by hand'")
    target.load(table, [stage.segment(ORDERS, [(2, 2, "b2"), (3, 2, "c")], run=2)], generation=1, fence=1)
    assert read_rows(target, "orders", ["id", "note", "kept"]) == [
        ("1", "a", "by hand"),
        ("2", "b2", "by hand"),
        ("3", "c", "default"),
    ]
    whole = orders(WriteMode.REPLACE)
    target.load(whole, [stage.segment(ORDERS, [(2, 3, "x"), (4, 3, "y")], run=3)], generation=1, fence=1)
    assert read_rows(target, "orders", ["id", "note", "kept"]) == [
        ("2", "x", "default"),
        ("4", "y", "default"),
    ]
    with pytest.raises(TargetError, match="CHECK constraint"):
        target.load(whole, [stage.segment(ORDERS, [(5, 3, "bad")], run=4)], generation=1, fence=1)
    assert target.count("orders") == 2
    assert execute(path, "SELECT count(*) FROM duckdb_indexes()") == [(1,)]


def test_a_view_shows_the_rows_of_the_table_that_was_swapped_in(
    path: Path, target: DuckDbTarget, stage: Stage
) -> None:
    table = orders(WriteMode.REPLACE)
    target.prepare(table, ORDERS)
    execute(path, "CREATE VIEW seen AS SELECT id FROM orders")
    target.load(table, [stage.segment(ORDERS, [(7, 1, "a")])], generation=1, fence=1)
    assert execute(path, "SELECT id FROM seen") == [(7,)]


def test_names_that_differ_in_case_alone_are_refused(target: DuckDbTarget) -> None:
    with pytest.raises(IncompatibleTable, match="columns id and ID have the same name here"):
        target.prepare(orders(), schema_of(id=Kind.INT64, ID=Kind.INT64))


def test_a_column_in_another_case_is_the_same_column(path: Path, target: DuckDbTarget, stage: Stage) -> None:
    execute(path, 'CREATE TABLE Orders (ID BIGINT, "At" BIGINT, NOTE VARCHAR)')
    table = orders(WriteMode.MERGE)
    target.prepare(table, ORDERS)
    for run in (1, 2):
        target.load(table, [stage.segment(ORDERS, [(1, 1, f"run {run}")], run=run)], generation=1, fence=1)
    assert read_rows(target, "orders", ["id", "note"]) == [("1", "run 2")]


def test_a_view_is_not_loaded_into(path: Path, target: DuckDbTarget) -> None:
    execute(path, "CREATE VIEW orders AS SELECT 1 AS id")
    with pytest.raises(IncompatibleTable, match="a view of that name"):
        target.prepare(orders(), ORDERS)


def test_a_column_that_must_be_filled_and_is_not_brought_is_refused(path: Path, target: DuckDbTarget) -> None:
    execute(path, 'CREATE TABLE orders (id BIGINT, "at" BIGINT, note VARCHAR, owner VARCHAR NOT NULL)')
    with pytest.raises(IncompatibleTable, match="owner: the rows do not have it"):
        target.prepare(orders(), ORDERS)


def test_a_column_that_duckdb_will_not_widen_is_explained(path: Path, target: DuckDbTarget) -> None:
    execute(path, "CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    with pytest.raises(IncompatibleTable, match="the rows need BIGINT, the table has INTEGER"):
        target.prepare(orders(), schema_of(id=Kind.INT64, extra=Kind.TEXT))
    assert execute(path, "SELECT count(*) FROM duckdb_columns() WHERE table_name = 'orders'") == [(1,)]


# --- the rest --------------------------------------------------------------------------------


def test_a_full_disk_loses_nothing_and_doubles_nothing(target: DuckDbTarget, stage: Stage) -> None:
    target.prepare(orders(), ORDERS)
    staged = [stage.segment(ORDERS, [(n, n, os.urandom(40).hex()) for n in range(20_000)])]
    code = (
        "import pickle, resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))\n"
        "target, table, segments = pickle.load(sys.stdin.buffer)\n"
        "from tidegate.core.errors import TargetError\n"
        "try:\n    target.load(table, segments, generation=1, fence=1)\n"
        "except TargetError as error:\n    print(error)\n"
    )
    said = run_python(code, (target, orders(), staged))
    assert "refused to commit" in said
    assert target.count("orders") == 0
    assert target.load(orders(), staged, generation=1, fence=1) == 20_000


def test_a_load_does_not_wait_for_pandas_to_be_imported(target: DuckDbTarget, stage: Stage) -> None:
    code = (
        "import pickle, sys\n"
        "target, table, schema, segments = pickle.load(sys.stdin.buffer)\n"
        "target.prepare(table, schema)\n"
        "print(target.load(table, segments, generation=1, fence=1), 'pandas' in sys.modules)\n"
    )
    job = (target, orders(WriteMode.MERGE), ORDERS, [stage.segment(ORDERS, [(1, 1, "a")])])
    assert run_python(code, job) == "1 False\n"


def run_python(code: str, job: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(job), stdout=subprocess.PIPE, check=True
    )
    return done.stdout.decode()


_RETYPING = """
import sys
from pathlib import Path
from tidegate.targets.duckdb import DuckDb
with DuckDb(Path(sys.argv[1])).writing() as session:
    session.change("CREATE TABLE x AS SELECT TIMESTAMPTZ '1800-01-01 00:00:00+00' AS moment")
    session.change("ALTER TABLE x ALTER COLUMN moment TYPE VARCHAR")
"""


def test_moments_become_text_in_utc_wherever_the_machine_stands(path: Path) -> None:
    """The offsets of those days had seconds, which their text leaves out."""
    elsewhere = {**os.environ, "TZ": "America/New_York"}
    subprocess.run([sys.executable, "-c", _RETYPING, str(path)], env=elsewhere, check=True)

    with closing(duckdb.connect(path, read_only=True)) as connection:
        assert connection.execute("SELECT moment FROM x").fetchall() == [("1800-01-01 00:00:00+00",)]


def test_a_killed_loader_does_not_keep_the_file(path: Path, target: DuckDbTarget, stage: Stage) -> None:
    target.prepare(orders(), ORDERS)
    staged = [stage.segment(ORDERS, [(1, 1, "a")])]
    with held(path), load_process(target, orders(), staged, generation=1, fence=1) as loader:
        loader.wait_until_ready()
        loader.go()
        loader.kill()
    assert target.load(orders(), staged, generation=1, fence=1) == 1


@pytest.mark.parametrize(
    ("native", "declared"),
    [
        ("DECIMAL(12,2)", DataType(Kind.DECIMAL, 12, 2)),
        ("UBIGINT", DataType(Kind.UINT64)),
        ("TIMESTAMP WITH TIME ZONE", DataType(Kind.INSTANT)),
        ("TIMESTAMP_MS", DataType(Kind.TIMESTAMP, precision=3)),
        ("HUGEINT", DataType(Kind.DECIMAL, 38, 0)),
        ("INTEGER[]", None),
        ("ENUM('a', 'b')", None),
        ("TIMESTAMP_NS", None),
    ],
)
def test_native_types_are_understood(native: str, declared: DataType | None) -> None:
    assert declared_type(native) == declared

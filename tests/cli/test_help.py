from __future__ import annotations

import resource
import subprocess
import sys
from importlib.metadata import version

import pytest
from click.testing import CliRunner

from tests.cli.conftest import Run, Shop
from tidegate.cli.root import COMMANDS, tidegate

_SLOW = ("duckdb", "pandas", "pyarrow", "pydantic", "pyspark", "rich", "yaml")


def test_help_imports_nothing_slow_and_answers_at_once() -> None:
    code = (
        "import sys; sys.argv = ['tidegate', '--help']\n"
        "from tidegate.cli import main\n"
        "try: main()\n"
        f"finally: print([name for name in {_SLOW!r} if name in sys.modules], file=sys.stderr)"
    )
    began = _seconds_of_children()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert "sync" in done.stdout
    assert _seconds_of_children() - began < 1.5  # it takes about 0.15 s where nobody else is at work


def _seconds_of_children() -> float:
    """Of the processor, which passes only while somebody works: a busy machine is not a failure."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize("name", [name for name, entry in COMMANDS.items() if entry.help])
def test_every_command_explains_itself(name: str) -> None:
    result = CliRunner().invoke(tidegate, [name, "--help"])
    assert result.exit_code == 0
    assert result.output.startswith(f"Usage: tidegate {name}")


@pytest.mark.parametrize(
    "command",
    [
        ("watermark", "set"),
        ("watermark", "rollback"),
        ("watermark", "history"),
        ("columns", "map"),
        ("columns", "unmap"),
        ("columns", "accept"),
        ("quarantine", "redrive"),
        ("quarantine", "discard"),
    ],
)
def test_commands_for_one_table_promise_no_choice_of_all(command: tuple[str, ...]) -> None:
    help_text = CliRunner().invoke(tidegate, [*command, "--help"]).output
    assert "The table. [required]" in help_text
    assert "May be given several times" not in help_text


def test_old_names_work_but_are_not_listed() -> None:
    listed = CliRunner().invoke(tidegate, ["--help"]).output
    for old in ("backup", "s3clean"):
        assert old not in listed
        assert CliRunner().invoke(tidegate, [old, "--help"]).exit_code == 0


def test_an_unknown_command_names_the_nearest_one() -> None:
    result = CliRunner().invoke(tidegate, ["snyc"])
    assert result.exit_code == 2
    assert "'sync'" in result.stderr


@pytest.mark.parametrize("args", [("--version",), ("status", "--version")])
def test_the_version_is_that_of_the_package(args: tuple[str, ...]) -> None:
    assert CliRunner().invoke(tidegate, args).output == f"tidegate {version('tidegate')}\n"


def test_global_options_may_stand_before_and_after_the_command(shop: Shop) -> None:
    before = CliRunner().invoke(tidegate, ["--project", str(shop.root), "config", "list-pipelines"])
    after = CliRunner().invoke(tidegate, ["config", "list-pipelines", "--project", str(shop.root)])
    between = CliRunner().invoke(tidegate, ["config", "--project", str(shop.root), "list-pipelines"])
    assert before.exit_code == 0
    assert before.output == after.output == between.output


@pytest.mark.parametrize("path", ["config/connections.yml", "config", "."])
def test_a_project_can_be_named_by_its_connections_file(shop: Shop, path: str) -> None:
    args = ["config", "list-pipelines", "--config-file", str(shop.root / path)]
    assert "shop" in CliRunner().invoke(tidegate, args).output


def test_a_log_file_tells_what_happened_and_holds_no_secret(shop: Shop, run: Run) -> None:
    connections = shop.root / "config/connections.yml"
    connections.write_text(
        "connections:\n"
        "  sources:\n"
        "    shop: {type: mysql, host: 127.0.0.1, database: x, username: u, password: hunter2hunter2}\n"
        "  targets:\n"
        "    warehouse: {type: duckdb, path: w.duckdb}\n"
        "staging: {files: {type: local, path: s}}\n"
        "state: {default: {type: local, path: t}}\n"
    )
    log = shop.root / "log.jsonl"
    result = run("config", "show", "--log-file", str(log), "--json-logs", "--debug")
    assert result.exit_code == 0
    text = log.read_text() + result.output
    assert '"message": "tidegate config show"' in text
    assert "hunter2hunter2" not in text


def test_an_unexpected_error_apologises_without_a_trace(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegate.config.project import Project

    def broken(*_: object) -> None:
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr(Project, "load", broken)
    result = run("status")
    assert result.exit_code == 1
    assert "something unexpected happened" in result.stderr
    assert "--debug" in result.stderr
    assert "Traceback" not in result.stderr
    assert "Traceback" in run("status", "--debug").stderr


def test_no_project_is_an_error_with_a_hint(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(str(tmp_path))
    result = CliRunner().invoke(tidegate, ["status"])
    assert result.exit_code == 2
    assert "tidegate init" in result.stderr

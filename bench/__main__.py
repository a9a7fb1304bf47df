"""`python -m bench`: measure Tidegate beside its peers, and say how they compare."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import report
from bench.arrivals import demand_complete
from bench.contract import COLD, Copy, Tool, ToolFailed
from bench.idle import idle
from bench.results import Failure, Findings, Result
from bench.tables import Table, create, give_memory, read_through
from bench.tools import TOOLS
from bench.tools.tidegate import CURSORS, Tidegate
from tests import servers
from tests.servers import Server, fresh_database

SERVERS: dict[str, Callable[[], AbstractContextManager[Server]]] = {
    "mariadb": servers.mariadb,
    "postgres": servers.postgres,
}
LARGE = 10
"""How many times larger the table is that shows whether memory stays flat."""


@dataclass(frozen=True)
class Options:
    rows: int
    rounds: int
    only: list[str]
    tools: list[str]
    strategy: str
    idle_tables: int
    large: bool
    json: Path | None


def parsed(arguments: Sequence[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rows", type=int, default=3_000_000, help="rows of the table (3,000,000)")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is measured (3)")
    parser.add_argument("--only", type=_names(SERVERS), default=list(SERVERS), help="mariadb,postgres")
    parser.add_argument("--tools", type=_names(TOOLS), default=list(TOOLS), help=",".join(TOOLS))
    parser.add_argument(
        "--strategy", choices=CURSORS, default="id_only", help="how Tidegate follows the table"
    )
    parser.add_argument("--idle-tables", type=int, default=50, help="tables without news (50; 0: leave out)")
    parser.add_argument("--large", action="store_true", help=f"also a table of {LARGE} times the rows")
    parser.add_argument("--json", type=Path, help="write every single figure to this file")
    return Options(**vars(parser.parse_args(arguments)))


def _names(known: Mapping[str, object]) -> Callable[[str], list[str]]:
    def split(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"`{name}` is none of {', '.join(known)}")
        return names

    return split


@dataclass(frozen=True)
class Bench:
    """One server's share of a run."""

    options: Options
    label: str
    server: Server
    folder: Path
    findings: Findings

    def run(self) -> None:
        give_memory(self.server)
        with fresh_database(self.server) as database:
            self._speed(database)
        if "tidegate" in self.options.tools:
            self._tidegate_alone()

    def _speed(self, database: Server) -> None:
        table = create(database, self.options.rows)
        read_through(database, table)
        tools = [self._tool(name) for name in self.options.tools]
        for number in range(1, self.options.rounds + 1):
            for how in ("cold", "warm"):
                for tool in tools:
                    self.findings.results += self._copies(tool, how, database, table, number)
            tools = [*tools[1:], tools[0]]  # so that none is always first

    def _tidegate_alone(self) -> None:
        if self.options.large:
            with fresh_database(self.server) as database:
                table = create(database, self.options.rows * LARGE)
                self.findings.large += self._copies(self._tool("tidegate"), "cold", database, table, 1)
        if self.options.idle_tables and self.label == "mariadb":
            with fresh_database(self.server) as database, _folder(self.folder / "idle") as folder:
                self.findings.idle.append(idle(database, self.label, self.options.idle_tables, folder))

    def _tool(self, name: str) -> Tool:
        return Tidegate(self.options.strategy) if name == "tidegate" else TOOLS[name]

    def _copies(self, tool: Tool, how: str, database: Server, table: Table, number: int) -> Iterator[Result]:
        """Let a tool copy the table; a tool that fails does not keep the others from being measured."""
        run = tool.cold if how == COLD else tool.warm
        load = os.getloadavg()[0]
        try:
            with _folder(self.folder / tool.name / how) as folder:
                for copy in run(database, table, folder):
                    yield self._result(tool, copy, table, number, load)
        except ToolFailed as error:
            _say(f"{self.label}, {tool.name}, {how}: failed: {error}")
            self.findings.failures.append(Failure(self.label, tool.name, str(error)))

    def _result(self, tool: Tool, copy: Copy, table: Table, number: int, load: float) -> Result:
        size = demand_complete(table, copy.folder)
        result = Result(self.label, tool.name, copy.phase, number, table.rows, copy.cost, size, load)
        _say(
            f"{self.label}, round {number}, {tool.name}, {copy.phase}: {copy.cost.seconds:.1f} s, "
            f"{result.rows_per_second:,.0f} rows/s"
        )
        return result


@contextmanager
def _folder(path: Path) -> Iterator[Path]:
    """A folder that is gone afterwards: a run writes gigabytes."""
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    options = parsed()
    for name in options.tools:
        _say(f"preparing {name}")
        TOOLS[name].prepare()
    findings = Findings(options.rows)
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        for label in options.only:
            with SERVERS[label]() as server:
                Bench(options, label, server, Path(folder) / label, findings).run()
    print(report.text(findings))
    if options.json:
        options.json.write_text(json.dumps(asdict(findings), indent=2) + "\n")
    return 1 if findings.failures else 0


if __name__ == "__main__":
    sys.exit(main())

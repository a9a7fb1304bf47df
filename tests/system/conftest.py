"""A project on every route, and a way to sync it in this process on the shared Spark session."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from tests.clusters.driver import Driver, session_of
from tests.system.shop import HYBRID, Lake, Shop, Warehouse, quoted, write_project
from tests.system.syncing import Notes, now, sync_place
from tidegate.config.project import Project
from tidegate.core.watermark import StreamId, Watermark
from tidegate.spark.session import LazySession, SparkSettings
from tidegate.sync.library import open_parts, open_session
from tidegate.sync.marks import ByHand
from tidegate.sync.parts import Parts
from tidegate.sync.pipeline import Request
from tidegate.sync.result import SyncResult, TableResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROLE = "arn:aws:iam::123456789012:role/copy"
ROUTES = ["sqlite-duckdb", "mariadb-duckdb", "mariadb-postgres", "postgres-duckdb", "postgres-postgres"]


@dataclass
class Place:
    """A project with its two ends."""

    folder: Path
    shop: Shop
    warehouse: Warehouse
    spark: SparkSession | None
    notes: Notes = field(default_factory=Notes)
    sources: dict[str, Any] = field(default_factory=dict)
    """Connections to read through instead of the shop's own, or beside it."""
    sections: dict[str, Any] = field(default_factory=dict)
    """Sections of connections.yml that are not as usual: another staging, state or Spark."""
    clock: Callable[[], datetime] = now
    """What a sync takes the time to be; its tasks look at the machine's."""

    def configure(self, tables: dict[str, Any] | None = None, **pipeline: Any) -> None:
        sources = {"shop": self.shop.config, **self.sources}
        chosen = tables or {"orders": HYBRID}
        write_project(self.folder, sources, self.warehouse, chosen, sections=self.sections, **pipeline)

    def sync(self, **request: Any) -> SyncResult:
        session, parts = self.session(), self.parts()
        return sync_place(self.folder, Request(**request), session, self.notes, parts, clock=self.clock)

    def synced(self, **request: Any) -> TableResult:
        """Sync one table and demand that nothing failed."""
        result = self.sync(**request)
        [table] = result.tables.values()
        assert table.error is None, str(table.error)
        return table

    def session(self) -> LazySession:
        return LazySession(SparkSettings(master="local[2]"), self.spark)

    def parts(self) -> Parts:
        project = Project.load(self.folder)
        return open_parts(project.pipeline("shop"), command="test")

    def by_hand(self) -> ByHand:
        parts = self.parts()
        return ByHand(
            parts.store,
            lambda _: parts.target(),
            parts.holder,
            lambda: datetime.now(UTC),
            lambda: secrets.token_hex(4),
        )

    def mark(self, table: str = "orders") -> Watermark:
        mark = self.parts().store.read(StreamId("shop", table)).watermark
        assert mark is not None
        return mark

    def agree(self) -> None:
        """Source and target hold the same rows, and nothing is left on the way."""
        source, target = self.shop.rows(), self.warehouse.rows()
        assert len(target) == len(source)
        assert target == source
        assert self.mark().pending == ()

    def same(self, table: str, *columns: str, target: str | None = None) -> None:
        """A table of any shape holds the same rows on both sides, each as often."""
        chosen = ", ".join(map(self.shop.quote, columns))
        source = self.shop.run(f"SELECT {chosen} FROM {self.shop.quote(table)}")
        chosen = ", ".join(map(quoted, columns))
        arrived = self.warehouse.execute(f"SELECT {chosen} FROM {quoted(target or table)}")
        missing, surplus = Counter(map(_plain, source)), Counter(map(_plain, arrived))
        assert (missing - surplus, surplus - missing) == (Counter(), Counter())


def _plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Values that mean the same, as the same Python values."""
    return tuple(
        str(value)
        if isinstance(value, UUID)
        else value.astimezone(UTC)
        if isinstance(value, datetime) and value.tzinfo is not None
        else value
        for value in row
    )


@dataclass
class DistantPlace(Place):
    """A project whose syncs run in another process, on a Spark that is somewhere else."""

    driver: Driver = field(kw_only=True)

    def sync(self, **request: Any) -> SyncResult:
        result, texts = self.driver.sync(self.folder, Request(**request))
        self.notes.texts += texts
        return result

    def session(self) -> LazySession:
        return open_session(Project.load(self.folder))


@dataclass
class ClusterPlace(Place):
    """A project whose syncs run in this process, on a Spark that is somewhere else."""

    def session(self) -> LazySession:
        return session_of(self.folder)


Build = Callable[[str], Place]


@pytest.fixture
def build(request: pytest.FixtureRequest, tmp_path: Path, spark_kind: str) -> Build:
    def make(route: str) -> Place:
        source, target = route.split("-")
        shop, warehouse = _shop(request, source, tmp_path), _warehouse(request, target, tmp_path)
        if spark_kind == "local":
            return Place(tmp_path, shop, warehouse, request.getfixturevalue("spark"))
        server = request.getfixturevalue(f"spark_{spark_kind}")
        sections = {"spark": server.spark}
        if spark_kind == request.config.getoption("--spark"):
            _let_tasks_know_the_tests()
            return ClusterPlace(tmp_path, shop, warehouse, None, sections=sections)
        driver = request.getfixturevalue(f"{spark_kind}_driver")
        return DistantPlace(tmp_path, shop, warehouse, None, sections=sections, driver=driver)

    return make


def _let_tasks_know_the_tests() -> None:
    """Send along what tests put in the place of a part: the Python of the tasks has no tests."""
    from pyspark import cloudpickle

    import tests

    cloudpickle.register_pickle_by_value(tests)  # type: ignore[no-untyped-call]


@pytest.fixture(params=ROUTES)
def place(request: pytest.FixtureRequest, build: Build) -> Place:
    made = build(request.param)
    made.shop.create()
    made.configure()
    return made


def _shop(request: pytest.FixtureRequest, kind: str, folder: Path) -> Shop:
    if kind == "sqlite":
        return Shop({"type": "sqlite", "path": str(folder / "shop.db")})
    server = request.getfixturevalue(f"{kind}_database")
    return Shop(server.config, server)


def _warehouse(request: pytest.FixtureRequest, kind: str, folder: Path) -> Warehouse:
    if kind == "duckdb":
        return Warehouse({"type": "duckdb", "path": str(folder / "warehouse.duckdb")})
    if kind == "delta":
        return Lake({"type": "delta", "path": str(folder / "lake")})
    if kind == "redshift":
        return _stood_in(request)
    from tests import servers

    database = servers.fresh_database(request.getfixturevalue("postgres"))
    server = database.__enter__()
    request.addfinalizer(lambda: database.__exit__(None, None, None))
    return Warehouse({**server.config, "schema": "public"}, server)


def _stood_in(request: pytest.FixtureRequest) -> Warehouse:
    """A database that is a Redshift to those who come through the stand-in; tests look at it from behind."""
    behind, stand_in = request.getfixturevalue("postgres_database"), request.getfixturevalue("redshift")
    changes = {"type": "redshift", "port": stand_in.port, "tls": {"mode": "disable"}}
    return Warehouse({**behind.config, **changes, "iam_role": ROLE}, behind)

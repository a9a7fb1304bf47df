"""Credentials reach the tasks and show nowhere on the way: in no log, event, web page or process list."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest

from tests.clusters.driver import driver
from tests.servers import HOST, S3Server
from tests.spark_servers import SparkServer, watched
from tests.system.conftest import DistantPlace
from tests.system.shop import HYBRID, Shop, Warehouse
from tidegate.core.errors import LoginRefused
from tidegate.spark.session import LazySession
from tidegate.sync.parts import Parts
from tidegate.sync.pipeline import Request

WRONG = "not-the-pass-word-7f3a"
CONFIGURED, IN_ADDRESS = "configured-for-spark-91c2", "part-of-an-address-5d7e"
CONFIGURED_FOR_SPARK = {
    "spark.hadoop.fs.tidegate.secret.key": CONFIGURED,
    "spark.tidegate.place": f"postgresql://app:{IN_ADDRESS}@db.internal/shop",
}
NEWEST = 6


@pytest.fixture(scope="module")
def spark_local(tmp_path_factory: pytest.TempPathFactory) -> SparkServer:
    """Spark in the process that syncs, with event log and web pages."""
    folder = tmp_path_factory.mktemp("local")
    conf = {**watched(folder), "spark.local.dir": str(folder / "scratch"), **CONFIGURED_FOR_SPARK}
    spark = {"master": "local[2]", "conf": conf}
    return SparkServer(folder, spark, (f"http://{HOST}:{conf['spark.ui.port']}",), ())


@pytest.fixture(scope="module")
def local_driver() -> Iterator[Any]:
    with driver() as running:
        yield running


@pytest.fixture(params=["local", "standalone", "connect"])
def spark_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["mariadb", "postgres"])
def place(
    request: pytest.FixtureRequest,
    server: SparkServer,
    spark_kind: str,
    fresh_bucket: S3Server,
    tmp_path: Path,
) -> DistantPlace:
    """Tasks log in twice: where they read, and where they stage."""
    database = request.getfixturevalue(f"{request.param}_database")
    made = DistantPlace(
        tmp_path,
        Shop(database.config, database),
        Warehouse({"type": "duckdb", "path": str(tmp_path / "warehouse.duckdb")}),
        None,
        sections={"spark": server.spark, "staging": {"files": fresh_bucket.config}},
        driver=request.getfixturevalue(f"{spark_kind}_driver"),
    )
    made.shop.create()
    made.shop.insert(200)
    made.configure({"orders": HYBRID}, processing={"batch_size": 50})
    return made


def _misinformed(parts: Parts) -> None:
    """Let tasks be told a password that is not the right one."""
    open_source = parts.open_source

    def opened() -> Any:
        source: Any = open_source()
        reader = source.reader()
        wrong = replace(reader, login=replace(reader.login, password=WRONG))
        source.reader = lambda: wrong
        return source

    parts.open_source = opened


def test_passwords_show_nowhere_though_tasks_have_them(
    place: DistantPlace, server: SparkServer, fresh_bucket: S3Server
) -> None:
    refused, _ = place.driver.sync(place.folder, Request(), _misinformed)
    place.synced()

    place.agree()
    error = refused.tables["orders"].error
    assert isinstance(error, LoginRefused), error
    assert place.shop.server is not None
    # What is no secret is found in all of these places, so the search looks where it should.
    assert _in_files(server.folder, "MapInArrow")
    assert _on_pages(server.pages, "MapInArrow")
    assert _in_processes("org.apache.spark")
    assert any(key.endswith(".parquet") for key in fresh_bucket.keys())  # noqa: SIM118 - it is no dictionary
    for secret in (WRONG, CONFIGURED, place.shop.server.password, fresh_bucket.secret_access_key):
        assert secret not in str(error)
        assert _in_files(server.folder, secret) == []
        assert _on_pages(server.pages, secret) == []
        # The bucket's own server was told its owner's secret by its environment.
        assert [path for path in _in_processes(secret) if path.parent.name != str(fresh_bucket.pid)] == []


@pytest.mark.parametrize("spark_kind", ["local"], indirect=True)
@pytest.mark.parametrize("place", ["mariadb"], indirect=True)
def test_spark_gets_the_secrets_of_its_own_configuration(place: DistantPlace) -> None:
    assert place.driver.ask(_configured, place.folder) == CONFIGURED_FOR_SPARK
    assert _in_processes("spark.sql.shuffle.partitions")
    assert _in_processes(IN_ADDRESS) == []


def _configured(session: LazySession) -> dict[str, str | None]:
    return {key: session.get().conf.get(key) for key in CONFIGURED_FOR_SPARK}


def _in_files(folder: Path, text: str) -> list[Path]:
    """Logs of servers and executors, events, and whatever else Spark has written there."""
    inside = [path for path in folder.rglob("*") if path.is_file() and "site-packages" not in path.parts]
    return [path for path in inside if _holds(path.read_bytes, text)]


def _in_processes(text: str) -> list[Path]:
    """Command lines and environments of all processes that can be looked at."""
    places = [path for name in ("cmdline", "environ") for path in Path("/proc").glob(f"[0-9]*/{name}")]
    return [path for path in places if _holds(path.read_bytes, text)]


def _on_pages(starts: tuple[str, ...], text: str) -> list[str]:
    """Web pages that can be reached from the first ones by their links; of each kind, the newest."""
    waiting, seen, found = list(starts), Counter[str](), []
    while waiting:
        address = waiting.pop(0)
        page = _page(address)
        if text.encode() in page:
            found.append(address)
        for link in _links(address, page):
            kind = link.partition("?")[0]
            if link not in seen and seen[kind] < NEWEST and _same_server(link, starts):
                seen.update({link, kind})
                waiting.append(link)
    return found


def _links(address: str, page: bytes) -> list[str]:
    """The pages that a page leads to, the newest jobs, stages and queries first."""
    links = re.findall(r'href="([^"#]+)', page.decode(errors="replace"))
    pages = {
        urljoin(address, link.replace("&amp;", "&")) for link in links if not link.endswith((".css", ".js"))
    }
    return sorted(pages, key=lambda link: (-max(map(int, re.findall(r"id=(\d+)", link)), default=0), link))


def _page(address: str) -> bytes:
    try:
        with urllib.request.urlopen(address, timeout=120) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        return error.read()


def _same_server(address: str, starts: tuple[str, ...]) -> bool:
    return urlsplit(address).netloc in {urlsplit(start).netloc for start in starts}


def _holds(read: Callable[[], bytes], text: str) -> bool:
    try:
        return text.encode() in read()
    except OSError:  # it has just ended, or is not ours to look at
        return False

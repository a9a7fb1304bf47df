"""A sync through a bastion, which may vanish at any moment."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.servers import Bastion
from tests.system.conftest import Build, Place
from tests.system.shop import HYBRID
from tests.system.syncing import Notes
from tidegate.config.connection_models import MySQLSource, SshTunnel
from tidegate.core.errors import ConfigError, ConnectError
from tidegate.core.receipts import Receipt
from tidegate.core.watermark import StreamId
from tidegate.reach.tunnel import close_all
from tidegate.spark.session import SparkSettings
from tidegate.staging.local import LocalStaging
from tidegate.sync.reaching import demand_own_way

APPEND = {**HYBRID, "write_mode": "append"}


@pytest.fixture
def own_bastion() -> Iterator[Bastion]:
    with servers.bastion() as server:
        yield server
        close_all()


@dataclass(frozen=True)
class HeldUp(LocalStaging):
    """Takes a few segments; the next ones wait until there is a file."""

    until: Path = Path()

    @contextmanager
    def create(self, key: str) -> Iterator[Any]:
        while key.endswith(".parquet") and len(list(self.root.rglob("*.parquet"))) > 2:
            if self.until.exists():
                break
            time.sleep(0.02)
        with super().create(key) as writer:
            yield writer


@dataclass(kw_only=True)
class Vanishing(Notes):
    """Stops the bastion when the first chunks are staged; starts it again when the sync notices, if told."""

    go_on: Path
    bastion: Bastion
    comes_back: bool = True
    stopped: int = field(default=0)

    def staged(self, stream: StreamId, receipt: Receipt) -> None:
        super().staged(stream, receipt)
        if not self.stopped:
            self.bastion.stop()
            self.stopped += 1
            self.go_on.touch()

    def note(self, stream: StreamId, text: str) -> None:
        super().note(stream, text)
        if self.stopped == 1 and self.comes_back:
            self.bastion.start()
            self.stopped += 1


def behind(place: Place, notes: Vanishing, **pipeline: Any) -> None:
    """Both ends of the place lie behind the bastion, and most is still to be read when it vanishes."""
    place.notes = notes
    held_up = HeldUp(place.folder / "staging", notes.go_on)
    place.parts = lambda: replace(Place.parts(place), staging=held_up)  # type: ignore[method-assign]
    tunnel = {"ssh_tunnel": notes.bastion.tunnel()}
    place.sources = {"shop": {**place.shop.config, **tunnel}}
    if place.warehouse.server is not None:
        place.warehouse = replace(place.warehouse, config={**place.warehouse.config, **tunnel})
    place.configure({"orders": APPEND}, processing={"batch_size": 20, "parallelism": 1}, **pipeline)


@pytest.mark.parametrize("route", ["mariadb-postgres", "postgres-duckdb"])
def test_a_sync_survives_a_bastion_that_vanishes_and_comes_back(
    route: str, build: Build, own_bastion: Bastion
) -> None:
    place = build(route)
    place.shop.create()
    place.shop.insert(800)
    notes = Vanishing(go_on=place.folder / "go-on", bastion=own_bastion)
    behind(place, notes, retries={"max": 5, "backoff_seconds": 1})

    place.synced()

    assert any("trying again" in text for text in place.notes.texts)
    place.agree()


def test_a_sync_whose_bastion_is_gone_goes_on_in_the_next_run(build: Build, own_bastion: Bastion) -> None:
    place = build("mariadb-postgres")
    place.shop.create()
    place.shop.insert(800)
    behind(
        place,
        Vanishing(go_on=place.folder / "go-on", bastion=own_bastion, comes_back=False),
        retries={"max": 0},
    )

    [failed] = place.sync().tables.values()
    assert isinstance(failed.error, ConnectError)
    assert 0 < failed.rows_extracted < 800

    own_bastion.start()
    assert place.synced().rows_extracted == 800 - failed.rows_extracted
    place.agree()


@pytest.mark.parametrize(
    ("left_out", "words"),
    [
        ({"private_key_path": None}, "with which `private_key_path`"),
        ({"known_hosts": None}, "with which `known_hosts`"),
        ({"local_port": 5000}, "only one can have port 5000"),
    ],
)
def test_on_a_cluster_a_tunnel_that_tasks_cannot_open_is_refused(
    left_out: dict[str, Any], words: str
) -> None:
    whole = {"host": "bastion", "private_key_path": "/keys/id", "known_hosts": "/keys/known_hosts"}
    cluster = SparkSettings(master="spark://head:7077")
    complete = MySQLSource(host="db", database="shop", ssh_tunnel=SshTunnel.model_validate(whole))
    demand_own_way(complete, cluster)
    lacking = complete.model_copy(update={"ssh_tunnel": SshTunnel.model_validate({**whole, **left_out})})
    demand_own_way(lacking, SparkSettings(master="local[*]"))
    with pytest.raises(ConfigError, match=words):
        demand_own_way(lacking, cluster)
    with pytest.raises(ConfigError, match=words):
        demand_own_way(lacking, SparkSettings(remote="sc://head"))

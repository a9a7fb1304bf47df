"""All stores keep the same contract."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.servers import S3Server, Server
from tidegate.config.connection_models import S3State
from tidegate.core.watermark import StreamId
from tidegate.delta_log import DeltaLog
from tidegate.s3 import S3Place
from tidegate.state.delta import WATERMARKS, DeltaStore
from tidegate.state.delta_rows import record_schema, stream_key
from tidegate.state.local import LocalStore
from tidegate.state.s3 import S3Store
from tidegate.state.sql import SqlStore
from tidegate.testing.stores import Damage, Opener, StoreContract

SPOIL = (
    "UPDATE tidegate_watermarks SET document = 'no document', version = 1 WHERE pipeline = {0} AND name = {0}"
)


class TestLocalFolder(StoreContract):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return partial(LocalStore, tmp_path / "state")

    @pytest.fixture
    def damage(self, tmp_path: Path) -> Damage:
        def damage(stream: StreamId) -> None:
            file = tmp_path / "state" / "watermarks" / f"{stream.pipeline}~{stream.name}.json"
            file.write_bytes(file.read_bytes()[:-20])

        return damage


@pytest.fixture
def quick_folder() -> Iterator[Path]:
    """In memory where there is such a place: thousands of synced commits would wait for the disk."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


class TestSqlite(StoreContract):
    @pytest.fixture
    def opener(self, quick_folder: Path) -> Opener:
        return partial(SqlStore, f"sqlite://{quick_folder}/state.db")

    @pytest.fixture
    def damage(self, quick_folder: Path) -> Damage:
        def damage(stream: StreamId) -> None:
            with closing(sqlite3.connect(quick_folder / "state.db", isolation_level=None)) as connection:
                connection.execute(SPOIL.format("?"), (stream.pipeline, stream.name))

        return damage


class TestDelta(StoreContract):
    @pytest.fixture
    def opener(self, quick_folder: Path) -> Opener:
        return partial(DeltaStore, quick_folder / "lake")

    @pytest.fixture
    def damage(self, quick_folder: Path) -> Damage:
        def damage(stream: StreamId) -> None:
            row = {
                "pipeline_name": stream.pipeline,
                "table_name": stream.name,
                "watermark_id": 1,
                "version": 1,
            }
            key = stream_key(stream)
            log = DeltaLog(f"{quick_folder}/lake/{WATERMARKS}", record_schema(), {}, indexed=[])
            log.ensure()
            log.refresh()
            log.commit(
                [{**row, "stream_key": key, "document": "no document"}], instead_of=f"stream_key = '{key}'"
            )

        return damage


class TestPostgresql(StoreContract):
    @pytest.fixture
    def opener(self, postgres_database: Server) -> Opener:
        return partial(SqlStore, postgres_database.url)

    @pytest.fixture
    def damage(self, postgres_database: Server) -> Damage:
        def damage(stream: StreamId) -> None:
            postgres_database.execute(SPOIL.format("%s"), (stream.pipeline, stream.name))

        return damage


class TestMariadb(StoreContract):
    @pytest.fixture
    def opener(self, mariadb_database: Server) -> Opener:
        return partial(SqlStore, mariadb_database.url)

    @pytest.fixture
    def damage(self, mariadb_database: Server) -> Damage:
        def damage(stream: StreamId) -> None:
            mariadb_database.execute(SPOIL.format("%s"), (stream.pipeline, stream.name))

        return damage


class TestS3(StoreContract):
    @pytest.fixture
    def opener(self, fresh_bucket: S3Server) -> Opener:
        return partial(
            S3Store, S3Place.of(S3State.model_validate({**fresh_bucket.config, "prefix": "state"}))
        )

    @pytest.fixture
    def damage(self, fresh_bucket: S3Server) -> Damage:
        def damage(stream: StreamId) -> None:
            key = f"state/watermarks/{stream.pipeline}~{stream.name}.json"
            client = fresh_bucket.client()
            text = client.get_object(Bucket=fresh_bucket.bucket, Key=key)["Body"].read()
            client.put_object(Bucket=fresh_bucket.bucket, Key=key, Body=text[:-20])

        return damage

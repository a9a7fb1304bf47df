"""Files of the tool that came before, as its users have them."""

from __future__ import annotations

import pytest

from tests.config.conftest import CONNECTIONS, Folder
from tidegate.config.connection_models import MySQLSource, RedshiftTarget, S3Staging, S3State
from tidegate.config.settings import Compression, Layout
from tidegate.core.quality import Rules
from tidegate.core.strategies import Cursor, Strategy

OLDER_CONNECTIONS = """
connections:
  sources:
    EU_RO_SSH:
      host: ro.db.example.internal
      port: 3306
      database: billing
      username: "${DB_USER}"            # from .env
      password: "${DB_EU_RO_PASSWORD}"
      ssh_tunnel:
        enabled: true
        host: 192.0.2.7                 # bastion
        username: "${SSH_BASTION_USER}"
        private_key_path: "${SSH_BASTION_KEY_PATH}"
        local_port: 0                   # any

    EU_RO_DIRECT:
      host: ro.db.example.internal
      port: 3306
      database: billing
      ssh_tunnel:
        enabled: false

  targets:
    redshift_default:
      host: dw.example.com
      port: 5439
      database: dw
      schema: public
      ssh_tunnel:
        enabled: true
        host: 192.0.2.8

s3_configs:
  s3_qa:
    bucket_name: dw-qa-example-com
    region: us-west-2
    incremental_path: incremental/
"""

OLDER_PIPELINE = """
pipeline:
  name: "eu_hybrid_cdc_v1.2"
  source: "EU_RO_SSH"
  target: "redshift_default"
  version: "1.2.0"

  processing:
    strategy: "sequential"
    batch_size: 50000
    timeout_minutes: 240

  s3:
    isolation_prefix: "eu_hybrid/"
    partition_strategy: "datetime"
    compression: "snappy"

tables:
  billing.invoices:
    cdc_strategy: "hybrid"
    cdc_timestamp_column: "created_at"
    cdc_id_column: "id"
    target_name: "invoices"

    processing:
      batch_size: 100000

    validation:
      enable_data_quality_checks: true
      max_null_percentage: 2.0
"""
DOTENV = "DB_USER=reader\nDB_EU_RO_PASSWORD=hunter2\nSSH_BASTION_USER=jump\nSSH_BASTION_KEY_PATH=/keys/id\n"


@pytest.fixture
def older(folder: Folder) -> Folder:
    (folder.root / "config/pipelines/shop.yml").unlink()
    folder.connections(OLDER_CONNECTIONS)
    folder.pipeline(OLDER_PIPELINE, "eu_hybrid_v1_2.yml")
    folder.write(".env", DOTENV)
    return folder


def test_older_files_load_as_they_are(older: Folder) -> None:
    project = older.load()
    project.validate()
    found = project.pipeline("eu_hybrid_v1_2").settings_for("billing.invoices")
    assert project.pipelines == ("eu_hybrid_cdc_v1.2",)
    assert (found.strategy, found.cursor) == (Strategy.HYBRID, Cursor("created_at", "id"))
    assert (found.target_name, found.batch_size) == ("invoices", 100_000)
    assert (found.layout, found.prefix, found.compression) == (
        Layout.DATETIME, "eu_hybrid/", Compression.SNAPPY,
    )  # fmt: skip
    assert found.validation == Rules(max_null_percentage=2.0)


def test_connections_without_a_type_are_mysql_and_redshift(older: Folder) -> None:
    known = older.load().connections
    source, target = known.source("EU_RO_SSH"), known.target("redshift_default")
    assert isinstance(source, MySQLSource)
    assert source.ssh_tunnel is not None
    assert (source.username, source.ssh_tunnel.host) == ("reader", "192.0.2.7")
    assert isinstance(target, RedshiftTarget)


def test_an_s3_config_is_a_staging_area_with_the_state_beside_it(older: Folder) -> None:
    project = older.load()
    pipeline = project.pipeline("eu_hybrid_cdc_v1.2")
    assert (pipeline.staging_name, pipeline.state_name) == ("s3_qa", "s3_qa")
    assert project.connections.staging("s3_qa") == S3Staging(
        bucket="dw-qa-example-com", prefix="incremental/", region="us-west-2"
    )
    assert project.connections.state("s3_qa") == S3State(
        bucket="dw-qa-example-com", prefix="watermarks/v2/", region="us-west-2"
    )


def test_a_tunnel_is_part_of_the_connection(older: Folder) -> None:
    source = older.open("eu_hybrid_v1_2").source
    assert isinstance(source, MySQLSource)
    assert source.ssh_tunnel is not None
    assert (source.ssh_tunnel.enabled, source.ssh_tunnel.host) == (True, "192.0.2.7")


def test_a_store_of_ones_own_goes_before_the_one_beside_an_s3_config(older: Folder) -> None:
    older.connections(OLDER_CONNECTIONS + "state:\n  marks: {type: local, path: ./marks}\n")
    assert older.open("eu_hybrid_v1_2").state_name == "marks"


def test_a_pipeline_with_local_staging_keeps_its_state_locally(folder: Folder) -> None:
    folder.connections(
        CONNECTIONS
        + "s3_configs: {s3_qa: {bucket_name: b}}\nstaging: {default: {type: local, path: files}}\n"
    )
    pipeline = folder.open()
    assert (pipeline.staging_name, pipeline.state_name) == ("default", "default")


def test_an_s3_config_called_default_keeps_its_own_state(older: Folder) -> None:
    older.connections(OLDER_CONNECTIONS.replace("s3_qa", "default"))
    project = older.load()
    assert project.connections.state(project.pipeline("eu_hybrid_v1_2").state_name).type == "s3"


def test_of_several_s3_configs_one_has_to_be_named(older: Folder) -> None:
    older.connections(OLDER_CONNECTIONS + "  s3_prod: {bucket_name: other}\n")
    assert "`staging` is missing: it could be any of `s3_qa` and `s3_prod`" in older.error("eu_hybrid_v1_2")
    older.pipeline(OLDER_PIPELINE.replace("  version", "  staging: s3_prod\n  version"), "eu_hybrid_v1_2.yml")
    assert older.open("eu_hybrid_v1_2").state_name == "s3_prod"


def test_a_name_cannot_be_both_staging_and_an_s3_config(older: Folder) -> None:
    older.connections(OLDER_CONNECTIONS + "staging: {s3_qa: {type: local, path: x}}\n")
    assert "s3_configs.s3_qa: `s3_qa` is also the name of an entry of `staging`" in older.error(
        "eu_hybrid_v1_2"
    )


def test_a_port_that_is_postgresqls_speaks_for_postgresql(folder: Folder) -> None:
    folder.connections(
        """
        connections:
          sources: {shop: {host: h, port: 5432, database: d}}
          targets: {warehouse: {host: h, port: 5432, database: d}}
        """
    )
    pipeline = folder.open()
    assert (pipeline.source.type, pipeline.target.type) == ("postgresql", "postgresql")

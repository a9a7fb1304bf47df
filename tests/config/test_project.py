from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.config.conftest import CONNECTIONS, PIPELINE, Folder
from tidegate.config.connection_models import (
    DeltaTarget,
    DuckDBTarget,
    LocalStaging,
    LocalState,
    MySQLSource,
    PostgreSQLSource,
    PostgreSQLTarget,
    RedshiftTarget,
    S3Staging,
    SQLiteSource,
    SqlState,
)
from tidegate.config.connections import Section
from tidegate.config.project import Project
from tidegate.core.errors import ConfigError, UsageError

EVERYTHING = """
connections:
  sources:
    shop:   {type: mysql, host: 127.0.0.1, port: 3306, database: shop, username: "${DB_USER}", password: "${DB_PASSWORD}"}
    crm:    {type: postgresql, host: db.internal, database: crm, username: app, password: "${CRM_PASSWORD}",
             tls: {mode: verify-full, ca: ca.pem},
             ssh_tunnel: {enabled: true, host: bastion, port: 22, username: "${SSH_USER}",
                          private_key_path: "${SSH_KEY}", known_hosts: known_hosts}}
    crm_ro: {type: postgresql, host: replica.internal, database: crm, ceiling: {primary: crm}}
    local:  {type: sqlite, path: shop.db}
  targets:
    warehouse: {type: duckdb, path: warehouse.duckdb}
    dw:        {type: postgresql, host: 127.0.0.1, database: dw, schema: public, username: dw, password: "${DW_PASSWORD}"}
    redshift:  {type: redshift, host: x, port: 5439, database: dw, schema: public, username: u,
                password: "${RS_PASSWORD}", iam_role: "arn:aws:iam::123456789012:role/copy"}
    lake:      {type: delta, path: ./lake}
staging:
  files: {type: local, path: ./staging}
  s3_qa: {type: s3, bucket: my-bucket, prefix: incremental/, region: us-west-2, endpoint_url: "http://127.0.0.1:9000"}
state:
  default: {type: local, path: ./state}
  shared:  {type: sql, url: "postgresql://app:${DW_PASSWORD}@db/state"}
  small:   {type: sql, url: "sqlite://marks/state 1.db"}
  bucket:  {type: s3, bucket: my-bucket, prefix: marks/}
  delta:   {type: delta, path: s3://bucket/marks}
spark: {master: "local[2]", conf: {spark.sql.ansi.enabled: true}}
"""  # noqa: E501 - as people write it
ENVIRON = {
    "DB_USER": "reader",
    "DB_PASSWORD": "hunter2",
    "CRM_PASSWORD": "crm-secret",
    "SSH_USER": "jump",
    "SSH_KEY": "keys/id_ed25519",
    "DW_PASSWORD": "dw/secret",
    "RS_PASSWORD": "rs-secret",
}


@pytest.fixture
def everything(folder: Folder) -> Project:
    folder.connections(EVERYTHING)
    return folder.load(ENVIRON)


def test_every_kind_of_connection_is_understood(everything: Project) -> None:
    known = everything.connections
    shop, crm, local = known.source("shop"), known.source("crm"), known.source("local")
    assert isinstance(shop, MySQLSource)
    assert (shop.port, shop.username) == (3306, "reader")
    assert isinstance(crm, PostgreSQLSource)
    assert (crm.port, crm.schema_name) == (5432, "public")
    assert isinstance(local, SQLiteSource)
    kinds = [type(known.target(name)) for name in known.names(Section.TARGET)]
    assert kinds == [DuckDBTarget, PostgreSQLTarget, RedshiftTarget, DeltaTarget]
    assert isinstance(known.staging("s3_qa"), S3Staging)
    assert [known.state(name).type for name in known.names(Section.STATE)] == [
        "local", "sql", "sql", "s3", "delta",
    ]  # fmt: skip
    assert everything.spark.conf == {"spark.sql.ansi.enabled": "true"}


def test_relative_paths_begin_at_the_folder_that_holds_config(everything: Project) -> None:
    known, root = everything.connections, everything.root
    crm, small, lake = known.source("crm"), known.state("small"), known.target("lake")
    assert isinstance(crm, PostgreSQLSource)
    assert crm.tls is not None
    assert crm.ssh_tunnel is not None
    assert crm.tls.ca == root / "ca.pem"
    assert crm.ssh_tunnel.private_key_path == root / "keys/id_ed25519"
    assert known.staging("files") == LocalStaging(path=root / "staging")
    assert isinstance(small, SqlState)
    assert small.url.get_secret_value() == f"sqlite://{root}/marks/state%201.db"
    assert isinstance(lake, DeltaTarget)
    assert lake.path == str(root / "lake")
    assert getattr(known.state("delta"), "path", None) == "s3://bucket/marks"


def test_without_them_staging_state_and_spark_have_defaults(folder: Folder) -> None:
    pipeline = folder.open()
    assert pipeline.staging == LocalStaging(path=folder.root / "staging")
    assert pipeline.state == LocalState(path=folder.root / "state")
    assert folder.load().spark.master == "local[*]"


def test_a_key_without_a_value_counts_as_left_out(folder: Folder) -> None:
    folder.connections(CONNECTIONS + "staging:\nstate:\nspark:\n  conf:\ns3_configs:\n")
    folder.table("cdc_id_column: id\nkeys:\nprocessing:\n", "s3:\nretries:\n")
    assert folder.open().settings_for("orders").batch_size == 50_000


def test_the_only_entry_is_the_default_one(folder: Folder) -> None:
    folder.connections(
        CONNECTIONS + "staging: {files: {type: local, path: f}}\nstate: {marks: {type: local, path: m}}"
    )
    pipeline = folder.open()
    assert (pipeline.staging_name, pipeline.state_name) == ("files", "marks")


def test_of_several_entries_default_is_the_default_one(folder: Folder) -> None:
    folder.connections(
        CONNECTIONS + "state: {marks: {type: local, path: m}, default: {type: local, path: s}}"
    )
    assert folder.open().state_name == "default"


def test_which_of_several_entries_has_to_be_said(folder: Folder) -> None:
    folder.connections(CONNECTIONS + "state: {a: {type: local, path: a}, b: {type: local, path: b}}")
    assert folder.error() == (
        "config/pipelines/shop.yml:1:1: pipeline: `state` is missing: it could be any of `a` and `b`"
    )


def test_the_nearest_folder_with_a_project_is_found(folder: Folder) -> None:
    deep = folder.root / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "config").mkdir()  # somebody else's
    assert Project.find(deep, {}).root == folder.root


def test_where_there_is_no_project_the_way_to_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        Project.find(tmp_path)
    assert str(caught.value) == (
        f"there is no project in {tmp_path} or in any folder above it "
        "(`tidegate init` writes one, `--project DIR` names another folder)"
    )
    with pytest.raises(ConfigError, match="it has no folder `config`"):
        Project.load(tmp_path)


@pytest.mark.parametrize("place", [".", "config", "config/connections.yml"])
def test_a_project_loads_by_its_folder_by_config_or_by_its_connections(folder: Folder, place: str) -> None:
    assert Project.load(folder.root / place, {}).root == folder.root


def test_the_long_ending_of_files_is_as_good(folder: Folder) -> None:
    (folder.root / "config/connections.yml").rename(folder.root / "config/connections.yaml")
    (folder.root / "config/pipelines/shop.yml").rename(folder.root / "config/pipelines/shop.yaml")
    assert folder.open().tables == ("orders",)


def test_two_connections_files_are_an_error(folder: Folder) -> None:
    folder.write("config/connections.yaml", CONNECTIONS)
    assert "keep one of them" in folder.error()


def test_a_project_without_connections_says_so(folder: Folder) -> None:
    (folder.root / "config/connections.yml").unlink()
    assert folder.error() == (
        "config/connections.yml: the file is missing (`tidegate init` writes one to begin with)"
    )


def test_a_pipeline_is_found_by_its_name_and_by_its_file(folder: Folder) -> None:
    folder.pipeline(PIPELINE.replace("name: shop", "name: 'Shop v1.2'"), "us_dw.yml")
    folder.pipeline(PIPELINE.replace("name: shop", "name: us_dw_2"))
    project = folder.load()
    assert project.pipelines == ("us_dw_2", "Shop v1.2")
    assert project.pipeline("us_dw").name == "Shop v1.2"
    assert project.pipeline("Shop v1.2").file == "config/pipelines/us_dw.yml"
    assert project.pipeline("shop").name == "us_dw_2"


def test_a_name_goes_before_a_file(folder: Folder) -> None:
    folder.pipeline(PIPELINE.replace("name: shop", "name: other"))
    folder.pipeline(PIPELINE, "other.yml")
    assert folder.load().pipeline("shop").file == "config/pipelines/other.yml"


def test_an_unknown_pipeline_is_answered_with_the_nearest_spelling(folder: Folder) -> None:
    with pytest.raises(UsageError) as caught:
        folder.open("shpo")
    assert str(caught.value) == "there is no pipeline `shpo`: did you mean `shop`? (there are `shop`)"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", ["shop", "SHOP"])
def test_two_pipelines_of_one_name_are_refused(folder: Folder, name: str) -> None:
    folder.pipeline(PIPELINE.replace("name: shop", f"name: {name}"), "twin.yml")
    assert folder.error() == (
        "config/pipelines/twin.yml:1:18: pipeline.name: config/pipelines/shop.yml has a pipeline of this "
        "name too, and they would share their marks"
    )


def test_a_pipeline_without_a_name_is_refused_whichever_is_asked_for(folder: Folder) -> None:
    folder.pipeline("tables: {a: {}}", "nameless.yml")
    assert folder.error() == (
        "config/pipelines/nameless.yml:1:1: pipeline: `name` is missing: its marks are kept under it"
    )


def test_files_that_are_no_pipelines_are_left_alone(folder: Folder) -> None:
    for name in (".hidden.yml", "notes.txt", "shop.yml~"):
        folder.write(f"config/pipelines/{name}", "not: [a pipeline")
    assert folder.load().pipelines == ("shop",)


def test_a_pipeline_is_checked_only_when_it_is_asked_for(folder: Folder) -> None:
    folder.pipeline("pipeline: {name: broken, colour: red}", "broken.yml")
    assert folder.open().name == "shop"
    assert "unknown key `colour`" in folder.error("broken")


def test_a_missing_variable_hurts_only_those_who_need_it(folder: Folder) -> None:
    folder.connections(
        """
        connections:
          sources:
            shop: {type: sqlite, path: shop.db}
            other: {type: mysql, host: h, database: d, password: "${NOT_HERE}"}
          targets:
            warehouse: {type: duckdb, path: w.duckdb}
        """
    )
    project = folder.load()
    assert project.pipeline("shop").source.type == "sqlite"
    with pytest.raises(ConfigError, match="the variable `NOT_HERE` is not defined"):
        project.connections.source("other")
    with pytest.raises(ConfigError, match="the variable `NOT_HERE` is not defined"):
        project.validate()


def test_validate_reports_the_problems_of_all_files_at_once(folder: Folder) -> None:
    folder.pipeline("pipeline: {name: a, source: shop, target: warehouse, sate: x}\ntables: {o: }", "a.yml")
    folder.pipeline(
        "pipeline: {name: b, source: shp, target: warehouse}\ntables: {o: {cdc_id_column: i}}", "b.yml"
    )
    with pytest.raises(ConfigError) as caught:
        folder.load().validate()
    first, *rest = str(caught.value).splitlines()
    assert first == "3 problems in the configuration"
    assert [line.partition(" (")[0] for line in rest] == [
        "  config/pipelines/a.yml:1:54: pipeline: unknown key `sate`: did you mean `state`?",
        "  config/pipelines/a.yml:2:10: tables.o: it does not say how to find what is new",
        "  config/pipelines/b.yml:1:29: pipeline.source: there is no source `shp`: did you mean `shop`?",
    ]


def test_redshift_needs_staging_that_it_can_read(folder: Folder) -> None:
    folder.connections(EVERYTHING)
    folder.pipeline(
        """
        pipeline: {name: shop, source: crm, target: redshift, staging: files, state: default}
        tables: {people: {cdc_id_column: id}}
        """
    )
    with pytest.raises(ConfigError) as caught:
        folder.load(ENVIRON).validate()
    assert "pipeline.staging: Redshift loads from S3" in str(caught.value)
    assert "type s3" in str(caught.value)


@pytest.mark.parametrize(
    ("codec", "taken"),
    [("snappy", True), ("gzip", True), ("none", True), ("lz4", False), ("brotli", False), ("zstd", False)],
)
def test_redshift_needs_files_that_it_can_read(folder: Folder, codec: str, *, taken: bool) -> None:
    folder.connections(EVERYTHING)
    folder.pipeline(
        f"""
        pipeline: {{name: shop, source: crm, target: redshift, staging: s3_qa, state: default,
                   s3: {{compression: {codec}}}}}
        tables: {{people: {{cdc_id_column: id}}}}
        """
    )
    if taken:
        folder.load(ENVIRON).validate()
        return
    with pytest.raises(ConfigError) as caught:
        folder.load(ENVIRON).validate()
    assert f"does not read Parquet files that are compressed with {codec}" in str(caught.value)


@pytest.mark.parametrize("options", ["redshift: {dist_key: id}", "delta: {partition_by: id}"])
def test_how_another_kind_of_target_lays_out_a_table_is_refused(folder: Folder, options: str) -> None:
    folder.table(f"cdc_id_column: id\n{options}")
    kind = options.partition(":")[0]
    assert f"{kind}: it is for targets of type {kind}, and `warehouse` is of type duckdb" in folder.error()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("redshift: {dist_style: key}", "`dist_style: key` needs a `dist_key`"),
        ("redshift: {dist_style: all, dist_key: id}", "goes with `dist_style: key` only"),
        ("redshift: {dist_style: rund}", "dist_style"),
    ],
)
def test_how_a_table_is_laid_out_has_to_make_sense(folder: Folder, options: str, said: str) -> None:
    folder.table(f"cdc_id_column: id\n{options}")
    assert said in folder.error()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("iam_role: copy", "expected a role such as arn:aws:iam::123456789012:role/copy"),
        ("tls: {mode: verify-full, ca: ca.pem}", "the driver brings Amazon's authorities with it"),
        ("tls: {mode: verify-full}\n    ssh_tunnel: {host: bastion}", "use mode verify-ca"),
    ],
)
def test_what_redshifts_driver_cannot_do_is_said(folder: Folder, more: str, said: str) -> None:
    folder.connections(
        "connections:\n  targets:\n   dw:\n    type: redshift\n    host: x\n    database: dw\n    "
        + more
        + "\n"
    )
    with pytest.raises(ConfigError, match=re.escape(said)):
        folder.load().validate()


def test_the_primary_of_a_replica_is_named_by_the_source_or_by_the_pipeline(folder: Folder) -> None:
    folder.connections(EVERYTHING)
    folder.pipeline(
        "pipeline: {name: r, source: crm_ro, target: dw, staging: files}\ntables: {a: {cdc_id_column: id}}",
        "r.yml",
    )
    folder.pipeline(
        """
        pipeline: {name: q, source: crm, target: dw, staging: files, ceiling: {primary: crm_ro}}
        tables: {a: {cdc_id_column: id}}
        """,
        "q.yml",
    )
    project = folder.load(ENVIRON)
    assert project.pipeline("r").primary_name == "crm"
    assert project.pipeline("q").primary == project.connections.source("crm_ro")


def test_staging_and_state_cannot_lie_in_one_folder(folder: Folder) -> None:
    folder.connections(
        CONNECTIONS + "staging: {f: {type: local, path: data}}\nstate: {m: {type: local, path: ./data/marks}}"
    )
    assert folder.error() == (
        "config/pipelines/shop.yml:1:1: pipeline: staging `f` and state `m` lie in the same folder or one in "
        "the other (give each a folder of its own in config/connections.yml)"
    )


def test_loading_imports_nothing_heavy() -> None:
    code = (
        "import sys, tidegate.config.project\n"
        "print([m for m in ('pyspark', 'pyarrow', 'pandas', 'numpy', 'duckdb', 'click') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_settings_come_without_pydantic() -> None:
    code = "import sys, tidegate.config.settings\nprint('pydantic' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"

"""`connections test` says step by step what works, what does not, and what to do about it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import servers
from tests.authority import Authority
from tests.cli.conftest import Run, Shop
from tests.servers import Bastion, S3Server, Server
from tidegate.cli import probes
from tidegate.reach.tunnel import close_all
from tidegate.testing.redshift import RedshiftLocal


@pytest.fixture(autouse=True)
def closed_afterwards() -> Iterator[None]:
    yield
    close_all()


@pytest.fixture
def connections(shop: Shop) -> Connections:
    return Connections(shop.root)


class Connections:
    """Writes connections.yml, whatever the pipeline of the shop makes of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sections: dict[str, Any] = {}

    def add(self, section: str, name: str, entry: dict[str, Any]) -> None:
        self.sections.setdefault(section, {})[name] = entry
        file = {
            "connections": {key: self.sections[key] for key in ("sources", "targets") if key in self.sections}
        }
        file |= {key: self.sections[key] for key in ("staging", "state") if key in self.sections}
        (self.root / "config" / "connections.yml").write_text(yaml.safe_dump(file))


def answers(run: Run, name: str, *, exit_code: int) -> dict[str, dict[str, Any]]:
    """The steps of one connection by their names, in their order."""
    result = run("connections", "test", "-c", name, "--json")
    assert result.exit_code == exit_code, result.output
    [answer] = json.loads(result.stdout)
    assert answer["ok"] == (exit_code == 0)
    return {step["step"]: step for step in answer["steps"]}


def test_the_example_project_works(shop: Shop, run: Run) -> None:
    result = run("connections", "test")
    assert result.exit_code == 0, result.stderr
    assert "source shop: works\n  ✓ tables        3 tables can be read" in result.stdout
    assert "✓ transactions  those that are open can be seen" in result.stdout
    assert "staging files: works" in result.stdout
    assert not (shop.root / "warehouse.duckdb").exists()
    assert not (shop.root / "staging").exists()
    (shop.root / "shop.db").unlink()
    assert run("connections", "test", "-c", "shop").exit_code == 5
    assert run("connections", "test", "-c", "shpo").exit_code == 2


@pytest.mark.parametrize("kind", ["mariadb", "postgres"])
def test_a_server_is_tried_from_its_name_to_its_clock(
    kind: str, connections: Connections, run: Run, authority: Authority, request: pytest.FixtureRequest
) -> None:
    tls = {"mode": "verify-full", "ca": str(authority.files(connections.root)["ca"])}
    with servers.fresh_database(request.getfixturevalue(f"{kind}_tls")) as server:
        server.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        connections.add("sources", "db", {**server.config, "host": "localhost", "tls": tls})
        steps = answers(run, "db", exit_code=0)
    wanted = ["DNS", "TCP", "TLS", "login", "version", "clock", "tables", "transactions"]
    assert list(steps) == wanted
    assert "localhost is " in steps["DNS"]["answer"]
    assert "the certificate is trusted and made out to localhost" in steps["TLS"]["answer"]
    assert steps["version"]["answer"].startswith("MariaDB" if kind == "mariadb" else "PostgreSQL")
    assert not any(step["warning"] for step in steps.values())


@pytest.mark.parametrize("kind", ["mariadb", "postgres"])
def test_each_step_can_fail_and_is_the_last(
    kind: str, connections: Connections, run: Run, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server: Server = request.getfixturevalue(f"{kind}_tls")
    stranger = {"mode": "verify-ca", "ca": str(Authority().files(tmp_path)["ca"])}
    changes: dict[str, dict[str, Any]] = {
        "DNS": {"host": "nowhere.invalid"},
        "TCP": {"port": 1},
        "TLS": {"tls": stranger},
        "login": {"password": "wrong"},
    }
    for step, change in changes.items():
        connections.add("sources", "db", {**server.config, **change})
        steps = answers(run, "db", exit_code=5)
        assert list(steps)[-1] == step
        assert not steps[step]["ok"]
        assert steps[step]["hint"]
        told = run("connections", "test", "-c", "db")
        assert f"✗ {step}" in told.stdout
        assert server.password not in told.output


def test_a_missing_grant_is_written_out(
    connections: Connections, run: Run, mariadb_database: Server, postgres_database: Server
) -> None:
    mariadb_database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    mariadb_database.execute("CREATE OR REPLACE USER poor IDENTIFIED BY 'secret of poor'")
    mariadb_database.execute(f"GRANT SELECT ON {mariadb_database.database}.* TO poor")
    connections.add("sources", "my", mariadb_database.logged_in_as("poor", "secret of poor").config)
    seen = answers(run, "my", exit_code=0)["transactions"]
    assert (seen["warning"], seen["hint"]) == (True, "GRANT PROCESS ON *.* TO 'poor'@'%'")
    mariadb_database.execute("DROP USER poor")

    postgres_database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    postgres_database.execute("CREATE TABLE closed (id int PRIMARY KEY)")
    postgres_database.execute("CREATE ROLE poor LOGIN PASSWORD 'secret of poor'")
    try:
        postgres_database.execute("GRANT SELECT ON orders TO poor")
        poor = postgres_database.logged_in_as("poor", "secret of poor")
        connections.add("sources", "pg", poor.config)
        steps = answers(run, "pg", exit_code=0)
        assert steps["privileges"]["hint"] == "GRANT SELECT ON closed TO poor"
        assert steps["transactions"]["hint"] == 'GRANT pg_read_all_stats TO "poor"'
        connections.add("targets", "dw", {**poor.config, "schema": "public"})
        steps = answers(run, "dw", exit_code=0)
        assert steps["privileges"]["hint"] == 'GRANT CREATE ON SCHEMA "public" TO "poor"'
    finally:
        postgres_database.execute("DROP OWNED BY poor")
        postgres_database.execute("DROP ROLE poor")


def test_a_clock_that_goes_wrong_is_noticed(connections: Connections, run: Run, mariadb: Server) -> None:
    mariadb.execute("CREATE OR REPLACE USER late IDENTIFIED BY 'x'")
    mariadb.execute("GRANT SELECT ON mysql.* TO late")
    mariadb.execute("SET GLOBAL init_connect = 'SET timestamp = UNIX_TIMESTAMP() - 120'")
    try:
        connections.add("sources", "db", mariadb.logged_in_as("late", "x").config)
        clock = answers(run, "db", exit_code=0)["clock"]
        assert clock["warning"]
        assert "s behind ours" in clock["answer"]
        assert "NTP" in clock["hint"]
    finally:
        mariadb.execute("SET GLOBAL init_connect = ''")
        mariadb.execute("DROP USER late")


def test_a_clock_by_which_leases_would_end_at_other_times_is_noticed(
    connections: Connections, run: Run, fresh_bucket: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections.add("state", "marks", {"type": "s3", **fresh_bucket.config})
    clock = answers(run, "marks", exit_code=0)["clock"]
    assert "agrees with ours" in clock["answer"]

    monkeypatch.setattr(probes, "_now", lambda: datetime.now(UTC) + timedelta(seconds=90))
    clock = answers(run, "marks", exit_code=0)["clock"]
    assert clock["warning"]
    assert "s behind ours" in clock["answer"]
    assert "leases" in clock["hint"]


def test_the_way_to_redshift_is_tried_before_its_ledger(
    connections: Connections, run: Run, redshift: RedshiftLocal, postgres_database: Server
) -> None:
    behind = {"type": "redshift", "port": redshift.port, "tls": {"mode": "disable"}}
    entry = {**postgres_database.config, **behind}
    connections.add("targets", "dw", entry)
    assert list(answers(run, "dw", exit_code=0)) == ["TCP", "ledger"]
    connections.add("targets", "dw", {**entry, "port": 1})
    assert list(answers(run, "dw", exit_code=5)) == ["TCP"]


def test_a_tunnel_is_a_step_of_its_own(
    connections: Connections, run: Run, bastion: Bastion, postgres_database: Server, tmp_path: Path
) -> None:
    entry = postgres_database.config
    connections.add("targets", "dw", {**entry, "ssh_tunnel": bastion.tunnel()})
    steps = answers(run, "dw", exit_code=0)
    assert list(steps) == ["tunnel", "TLS", "login", "version", "clock", "privileges", "ledger"]
    assert f"open through {bastion.user}@127.0.0.1:{bastion.port}" in steps["tunnel"]["answer"]

    state = {"type": "sql", "url": postgres_database.url, "ssh_tunnel": bastion.tunnel()}
    connections.add("state", "marks", state)
    steps = answers(run, "marks", exit_code=0)
    assert steps["records"]["answer"] == "0 tables known"

    (tmp_path / "nobody").touch()
    unknown = bastion.tunnel(known_hosts=str(tmp_path / "nobody"))
    connections.add("targets", "dw", {**entry, "ssh_tunnel": unknown})
    steps = answers(run, "dw", exit_code=5)
    assert list(steps) == ["tunnel"]
    assert "ssh-keyscan" in steps["tunnel"]["hint"]

    connections.add("targets", "dw", {**entry, "port": 1, "ssh_tunnel": bastion.tunnel()})
    assert "the bastion cannot reach" in answers(run, "dw", exit_code=5)["login"]["answer"]


def test_a_folder_that_cannot_be_written_is_named(connections: Connections, run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    connections.add("staging", "files", {"type": "local", "path": str(tmp_path / "file" / "staging")})
    steps = answers(run, "files", exit_code=1)
    assert "cannot be written" in steps["folder"]["answer"]


def test_a_bucket_is_written_read_and_left_as_it_was(
    connections: Connections, run: Run, fresh_bucket: S3Server
) -> None:
    connections.add("staging", "bucket", {"type": "s3", **fresh_bucket.config})
    connections.add("state", "marks", {"type": "s3", **fresh_bucket.config, "prefix": "marks/"})
    assert list(answers(run, "bucket", exit_code=0)) == ["write", "read", "delete", "list"]
    assert fresh_bucket.keys() == []
    assert answers(run, "marks", exit_code=0)["records"]["answer"] == "0 tables known"

    user = servers.s3_user(fresh_bucket)
    mine = {"Effect": "Allow", "Principal": user.access_key_id}
    rights = {"Action": "s3:*", "Resource": f"arn:aws:s3:::{fresh_bucket.bucket}/*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [mine | rights]})
    fresh_bucket.client().put_bucket_policy(Bucket=fresh_bucket.bucket, Policy=policy)
    connections.add("staging", "bucket", {"type": "s3", **user.config})
    assert "s3:ListBucket" in answers(run, "bucket", exit_code=5)["list"]["answer"]

    wrong = fresh_bucket.logged_in_as(fresh_bucket.access_key_id, "wrong").config
    connections.add("staging", "bucket", {"type": "s3", **wrong})
    steps = answers(run, "bucket", exit_code=5)
    assert list(steps) == ["write"]
    assert steps["write"]["hint"]

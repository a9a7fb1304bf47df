"""Every TLS mode, on every path, against servers that encrypt and servers that cannot."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.authority import Authority
from tests.reach.paths import ALL, answer, path, read_of
from tests.servers import Server
from tidegate.core.errors import LoginRefused, TlsRefused
from tidegate.reach.login import Login, Tls, login_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

on_every_path = pytest.mark.parametrize(("kind", "name"), ALL)


@pytest.fixture(scope="session")
def trusted(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The authority of the servers, and a client's certificate that they accept."""
    return authority.files(tmp_path_factory.mktemp("trusted"))


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same from an authority that nobody has heard of."""
    return Authority().files(tmp_path_factory.mktemp("stranger"))


@pytest.fixture
def encrypting(kind: str, request: pytest.FixtureRequest) -> Login:
    """A server that encrypts, by its address, which its certificate does not name."""
    server: Server = request.getfixturevalue(f"{'mariadb' if kind == 'mysql' else 'postgres'}_tls")
    return login_of(server.config)


@pytest.fixture
def plain(kind: str, request: pytest.FixtureRequest) -> Login:
    server: Server = request.getfixturevalue("mariadb" if kind == "mysql" else "postgres")
    return login_of(server.config)


def with_tls(login: Login, mode: str, **files: Path) -> Login:
    return replace(login, tls=Tls(mode, **{name: str(file) for name, file in files.items()}))


def named(login: Login) -> Login:
    """By the name that stands in the certificate."""
    return replace(login, host="localhost")


@on_every_path
def test_what_is_demanded_is_encrypted(
    kind: str, name: str, encrypting: Login, trusted: dict[str, Path]
) -> None:
    ask = path(kind, name)
    assert ask(with_tls(encrypting, "disable")) == ""
    assert ask(with_tls(encrypting, "prefer")) != ""
    assert ask(with_tls(encrypting, "require")) != ""
    assert ask(with_tls(encrypting, "verify-ca", ca=trusted["ca"])) != ""
    assert ask(with_tls(named(encrypting), "verify-full", ca=trusted["ca"])) != ""


@on_every_path
def test_a_certificate_of_a_stranger_is_refused(
    kind: str, name: str, encrypting: Login, stranger: dict[str, Path]
) -> None:
    for mode in ("verify-ca", "verify-full"):
        with pytest.raises(TlsRefused) as refused:
            path(kind, name)(with_tls(named(encrypting), mode, ca=stranger["ca"]))
        assert "must name the authority that signed" in str(refused.value)


@on_every_path
def test_a_certificate_that_names_another_host_is_refused(
    kind: str, name: str, encrypting: Login, trusted: dict[str, Path]
) -> None:
    with pytest.raises(TlsRefused) as refused:
        path(kind, name)(with_tls(encrypting, "verify-full", ca=trusted["ca"]))
    assert "made out to another host" in str(refused.value)


@on_every_path
def test_a_server_that_cannot_encrypt_is_refused_or_taken_so(kind: str, name: str, plain: Login) -> None:
    ask = path(kind, name)
    assert ask(with_tls(plain, "prefer")) == ""
    with pytest.raises(TlsRefused) as refused:
        ask(with_tls(plain, "require"))
    assert "turn TLS on at the server" in str(refused.value)
    assert not refused.value.transient


@on_every_path
def test_the_authorities_of_the_system_are_trusted_where_none_is_named(
    kind: str, name: str, encrypting: Login
) -> None:
    with pytest.raises(TlsRefused) as refused:
        path(kind, name)(with_tls(named(encrypting), "verify-full"))
    assert "must name the authority that signed" in str(refused.value)


@pytest.fixture
def certified(kind: str, encrypting: Login, request: pytest.FixtureRequest) -> Iterator[Login]:
    """A user who is let in with a client certificate only."""
    server: Server = request.getfixturevalue(f"{'mariadb' if kind == 'mysql' else 'postgres'}_tls")
    if kind == "mysql":
        server.execute("CREATE OR REPLACE USER certified IDENTIFIED BY 'x' REQUIRE X509")
        server.execute("GRANT ALL ON *.* TO certified")
        yield replace(encrypting, username="certified", password="x")
        return
    rules = server.folder / "data" / "pg_hba.conf"
    before = rules.read_text()
    server.execute("DROP ROLE IF EXISTS certified")
    server.execute("CREATE ROLE certified LOGIN PASSWORD 'x'")
    rules.write_text(
        "hostssl all certified 127.0.0.1/32 scram-sha-256 clientcert=verify-ca\n"
        f"hostssl all rejected 127.0.0.1/32 reject\n{before}"
    )
    server.execute("SELECT pg_reload_conf()")
    yield replace(encrypting, username="certified", password="x")
    rules.write_text(before)
    server.execute("SELECT pg_reload_conf()")


@on_every_path
def test_a_client_shows_its_certificate(
    kind: str, name: str, certified: Login, trusted: dict[str, Path]
) -> None:
    shown = {"cert": trusted["cert"], "key": trusted["key"]}
    ask = path(kind, name)
    assert ask(with_tls(certified, "verify-ca", ca=trusted["ca"], **shown)) != ""
    with pytest.raises(LoginRefused):
        ask(with_tls(certified, "verify-ca", ca=trusted["ca"]))


@pytest.mark.parametrize(("kind", "name"), [pair for pair in ALL if pair[0] == "postgresql"])
def test_a_login_that_is_refused_is_no_matter_of_tls(kind: str, name: str, certified: Login) -> None:
    """The server says of everybody it rejects whether they were encrypted."""
    with pytest.raises(LoginRefused, match=r"pg_hba\.conf rejects connection.*SSL encryption") as refused:
        path(kind, name)(with_tls(replace(certified, username="rejected"), "require"))
    assert not isinstance(refused.value, TlsRefused)


@on_every_path
def test_a_file_that_is_not_there_is_named(kind: str, name: str, encrypting: Login, tmp_path: Path) -> None:
    with pytest.raises(TlsRefused, match=r"`ca` under `tls` names cannot be read: .*missing\.pem"):
        path(kind, name)(with_tls(encrypting, "verify-ca", ca=tmp_path / "missing.pem"))


@pytest.mark.parametrize("kind", ["mysql", "postgresql"])
def test_spark_tasks_encrypt_and_verify_too(
    kind: str, encrypting: Login, trusted: dict[str, Path], stranger: dict[str, Path], spark: SparkSession
) -> None:
    reader, read = read_of(with_tls(named(encrypting), "verify-full", ca=trusted["ca"]), kind)
    untrusting = type(reader)(with_tls(named(encrypting), "verify-full", ca=stranger["ca"]))  # type: ignore[call-arg]

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            try:
                refused = answer(untrusting, read)
            except TlsRefused as error:
                refused = str(error)
            row = {"pid": os.getpid(), "cipher": answer(reader, read), "refused": refused}
            yield pa.RecordBatch.from_pylist([row])

    [row] = spark.range(0, 1, 1, 1).mapInArrow(task, "pid long, cipher string, refused string").collect()
    assert row["pid"] != os.getpid()
    assert row["cipher"]
    assert "must name the authority" in row["refused"]

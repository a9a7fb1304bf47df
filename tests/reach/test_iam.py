"""Tokens of AWS in place of passwords: made where a connection opens, and again before they are old."""

from __future__ import annotations

import pickle
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from tests import aws
from tests.authority import Authority
from tests.reach.paths import ALL, path, read_of
from tests.servers import Server
from tidegate.config.connection_models import RedshiftTarget
from tidegate.core import secrecy
from tidegate.core.errors import LoginRefused, TlsRefused
from tidegate.reach import iam
from tidegate.reach.iam import Iam, credentials
from tidegate.reach.iam import Server as Signed
from tidegate.reach.login import Login, Tls, login_of
from tidegate.sources import mysql_session

SERVER = Signed("db.eu-west-1.rds.amazonaws.com", 3306, "shop", "tidegate")


@pytest.fixture(autouse=True)
def somebody(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    aws.identity(monkeypatch)
    iam.forget()
    yield
    iam.forget()


def test_a_token_is_signed_for_one_user_of_one_server() -> None:
    made = credentials(Iam(region="eu-west-1"), SERVER)
    address, _, query = made.password.partition("?")
    signed = parse_qs(query)
    assert address == f"{SERVER.host}:3306/"
    assert (signed["Action"], signed["DBUser"]) == (["connect"], ["tidegate"])
    assert signed["X-Amz-Credential"][0].startswith("AKIATEST/")
    assert "/eu-west-1/rds-db/" in signed["X-Amz-Credential"][0]
    assert made.password not in repr(made)
    assert secrecy.hidden(f"refused {made.password}") == f"refused {secrecy.HIDDEN}"


def test_a_token_is_made_again_before_it_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def token() -> str:
        return credentials(Iam(cluster="dw"), SERVER, clock=lambda: now).password

    with aws.redshift(f"password-{n}" for n in count()) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_REDSHIFT", server.url)
        first = token()
        now = 599.0
        assert token() == first
        now = 601.0
        assert token() != first
        assert len(server.asked) == 2


@pytest.mark.parametrize("kind", ["cluster", "workgroup"])
def test_redshift_is_asked_for_a_user_and_a_password(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = {"host": "h", "database": "dw", "username": "u", "iam": {kind: "main"}}
    login = login_of(RedshiftTarget.model_validate(target))
    with aws.redshift(f"password-{n}" for n in count()) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_REDSHIFT", server.url)
        monkeypatch.setenv("AWS_ENDPOINT_URL_REDSHIFT_SERVERLESS", server.url)
        made = login.credentials()
    assert made.username == ("IAM:u" if kind == "cluster" else "IAM:main")
    assert made.password == "password-0"


def test_without_an_identity_it_is_said_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(LoginRefused, match="AWS gives no token for user `tidegate`"):
        credentials(Iam(), SERVER)


@pytest.fixture
def signing_in(kind: str, request: pytest.FixtureRequest) -> Login:
    """A user of a server that encrypts, whose password is the token of the moment."""
    server: Server = request.getfixturevalue(f"{'mariadb' if kind == 'mysql' else 'postgres'}_tls")
    login = replace(
        login_of(server.config), username="signed", password=None, tls=Tls("require"), iam=Iam("eu-west-1")
    )
    token = login.credentials().password
    if kind == "mysql":
        server.execute("CREATE OR REPLACE USER signed IDENTIFIED BY %s", [token])
        server.execute("GRANT ALL ON *.* TO signed")
    else:
        server.execute("DROP ROLE IF EXISTS signed")
        server.execute(f"CREATE ROLE signed LOGIN PASSWORD '{token}'")
    return login


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_every_path_signs_in(kind: str, name: str, signing_in: Login) -> None:
    assert path(kind, name)(signing_in) != ""


@pytest.mark.parametrize("kind", ["mysql", "postgresql"])
def test_no_token_travels_to_tasks(kind: str, signing_in: Login) -> None:
    reader, _ = read_of(signing_in, kind)
    token = signing_in.credentials().password
    assert token.encode() not in pickle.dumps(reader)
    iam.forget()  # as in another process
    login = pickle.loads(pickle.dumps(reader)).login
    assert login.credentials().password.startswith(f"{login.host}:{login.port}/?")


# --- Passwords in clear text ---------------------------------------------------


class ClearTextServer:
    """Greets like MySQL and asks for the password as it is, as RDS does for a token; then lets nobody in."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.heard = b""
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._thread.join(timeout=120)
        self._listener.close()

    def _serve(self) -> None:
        line, _ = self._listener.accept()
        with line:
            line.sendall(_packet(0, self._greeting()))
            number, answer = _receive(line)
            if self._context is not None:
                line = self._context.wrap_socket(line, server_side=True)
                number, answer = _receive(line)
            line.sendall(_packet(number + 1, b"\xfemysql_clear_password\0"))
            number, answer = _receive(line)
            self.heard = answer
            if answer:
                line.sendall(_packet(number + 1, b"\xff\x15\x04#28000nobody is let in"))
            line.close()

    def _greeting(self) -> bytes:
        flags = (
            0x0000_0200 | 0x0000_8000 | 0x0008_0000 | (0x0800 if self._context else 0)
        )  # 4.1, plugins, TLS
        low, high = (flags & 0xFFFF).to_bytes(2, "little"), (flags >> 16).to_bytes(2, "little")
        salt = b"12345678", b"123456789012\0"
        return (
            b"\x0a8.0.0\0" + bytes(4) + salt[0] + b"\0" + low + b"\x2d\x02\0" + high
            + bytes([21]) + bytes(10) + salt[1] + b"mysql_native_password\0"
        )  # fmt: skip


def _packet(number: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "little") + bytes([number]) + body


def _receive(line: socket.socket) -> tuple[int, bytes]:
    head = line.recv(4, socket.MSG_WAITALL) if not isinstance(line, ssl.SSLSocket) else line.recv(4)
    if len(head) < 4:
        return 0, b""
    size, body = int.from_bytes(head[:3], "little"), b""
    while len(body) < size:
        body += line.recv(size - len(body))
    return head[3], body


def test_a_token_is_sent_in_clear_text_through_tls_alone(authority: Authority, tmp_path: Path) -> None:
    made = authority.certificate("localhost")
    (tmp_path / "server.pem").write_bytes(made.key + made.chain)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")

    server = ClearTextServer(context)
    login = Login("127.0.0.1", server.port, "shop", "tidegate", tls=Tls("require"), iam=Iam("eu-west-1"))
    with pytest.raises(LoginRefused, match="refused the login"):
        mysql_session.connect(login)
    server.close()
    assert server.heard == login.credentials().password.encode() + b"\0"

    plain = ClearTextServer(None)
    with pytest.raises(TlsRefused, match="wants the password in clear text") as refused:
        mysql_session.connect(replace(login, port=plain.port, tls=Tls("prefer"), iam=None, password="secret"))
    plain.close()
    assert b"secret" not in plain.heard
    assert "secret" not in str(refused.value)

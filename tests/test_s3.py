"""Where S3 is, a client for it, and its errors in words."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from urllib.parse import parse_qs

import pytest
from pydantic import SecretStr, ValidationError

from tests import servers
from tests.lost_answers import losing_answer
from tests.servers import HOST, S3Server
from tests.toxiproxy import Toxiproxy
from tidegate.config.connection_models import S3State
from tidegate.core.errors import (
    ConfigError,
    ConnectError,
    LoginRefused,
    OutcomeUnknown,
    StateError,
    TidegateError,
)
from tidegate.s3 import Absent, S3Place, Unmet

ROLE = "arn:aws:iam::123456789012:role/tide"


@pytest.fixture(autouse=True)
def _a_machine_without_logins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


def place_in(server: S3Server, **changes: str) -> S3Place:
    return S3Place.of(S3State.model_validate({**server.config, **changes}))


def put(place: S3Place, key: str = "k", **conditions: str) -> None:
    with place.asking("s3:PutObject", key, refused=StateError, writes=True) as client:
        client.put_object(Bucket=place.bucket, Key=key, Body=b"one", **conditions)


def get(place: S3Place, key: str = "k") -> bytes:
    with place.asking("s3:GetObject", key, refused=StateError) as client:
        body: bytes = client.get_object(Bucket=place.bucket, Key=key)["Body"].read()
    return body


def listed(place: S3Place) -> list[str]:
    with place.asking("s3:ListBucket", refused=StateError) as client:
        found = client.list_objects_v2(Bucket=place.bucket).get("Contents", ())
    return [item["Key"] for item in found]


# --- Places ------------------------------------------------------------------


def test_a_place_comes_from_the_configuration_and_hides_its_secrets() -> None:
    config = S3State(
        bucket="b", prefix="state", access_key_id=SecretStr("AK1"), secret_access_key=SecretStr("hush")
    )
    place = S3Place.of(config)
    assert (place.key("x.json"), place.url("x.json")) == ("state/x.json", "s3://b/state/x.json")
    assert place.secret_access_key == "hush"
    assert "hush" not in repr(place)
    assert "AK1" not in repr(place)
    assert pickle.loads(pickle.dumps(place)) == place


@pytest.mark.parametrize(("prefix", "key"), [("", "x"), ("a", "a/x"), ("a/", "a/x"), ("/a/b/", "a/b/x")])
def test_a_prefix_is_a_folder_however_it_is_written(prefix: str, key: str) -> None:
    assert S3Place("b", prefix).key("x") == key


def test_a_url_can_say_everything_but_secrets() -> None:
    url = "s3://b/a/p%20q/?region=eu-west-1&endpoint_url=http://127.0.0.1:9000&path_style=false&profile=p"
    assert S3Place.at(url) == S3Place(
        "b", "a/p q/", "eu-west-1", "http://127.0.0.1:9000", path_style=False, profile="p"
    )
    for wrong in (
        "s3://",
        "s3:///x",
        "s3://key:secret@b/x",
        "s3://b?secret_access_key=x",
        "s3://b?path_style=1",
    ):
        with pytest.raises(ConfigError) as raised:
            S3Place.at(wrong)
        assert raised.value.hint


@pytest.mark.parametrize(
    "wrong",
    [
        {"access_key_id": "a"},
        {"secret_access_key": "a"},
        {"session_token": "a"},
        {"external_id": "a"},
        {"profile": "p", "access_key_id": "a", "secret_access_key": "b"},
    ],
)
def test_half_a_login_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        S3State.model_validate({"bucket": "b", **wrong})


@pytest.mark.parametrize(
    ("place", "address"),
    [
        (S3Place("tide-1", region="eu-west-1"), "https://tide-1.s3."),
        (S3Place("tide-1", region="eu-west-1", path_style=True), "https://s3."),
        (S3Place("tide-1", endpoint_url="http://minio.internal:9000"), "http://minio.internal:9000/tide-1/"),
        (
            S3Place("tide-1", endpoint_url="http://s3.internal", path_style=False),
            "http://tide-1.s3.internal/",
        ),
    ],
)
def test_buckets_are_in_the_path_where_an_endpoint_is_named(place: S3Place, address: str) -> None:
    client = replace(place, access_key_id="a", secret_access_key="s").client()
    signed = client.generate_presigned_url("get_object", {"Bucket": place.bucket, "Key": "k"})
    assert signed.startswith(address)


# --- Clients -----------------------------------------------------------------


def test_a_process_has_one_client_for_all_places_of_a_server(fresh_bucket: S3Server) -> None:
    place = place_in(fresh_bucket)
    together = threading.Barrier(4)
    found: list[object] = []

    def ask() -> None:
        together.wait()
        found.append(place.client())

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {id(client) for client in found} == {id(replace(place, bucket="other").client())}
    assert place.client(answer_seconds=5) is not place.client()


def test_a_forked_process_makes_a_client_of_its_own(fresh_bucket: S3Server) -> None:
    place = place_in(fresh_bucket)
    put(place)
    inherited = id(place.client())
    child = os.fork()
    if child == 0:
        os._exit(0 if get(place) == b"one" and id(place.client()) != inherited else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_without_boto3_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.exceptions", None)
    with pytest.raises(ConfigError, match=r"pip install 'tidegate\[s3\]'"):
        listed(S3Place("b"))


# --- Logging in --------------------------------------------------------------


def test_logins_come_from_the_environment_or_a_profile(
    fresh_bucket: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bare = S3Place(fresh_bucket.bucket, region="us-east-1", endpoint_url=fresh_bucket.endpoint_url)
    with pytest.raises(LoginRefused, match="no credentials") as raised:
        listed(replace(bare, region="us-west-1"))
    assert raised.value.exit_code == 5
    (tmp_path / "credentials").write_text(
        f"[tide]\naws_access_key_id = {fresh_bucket.access_key_id}\n"
        f"aws_secret_access_key = {fresh_bucket.secret_access_key}\n"
    )
    assert listed(replace(bare, profile="tide")) == []
    with pytest.raises(ConfigError, match="ebb") as missing:
        listed(replace(bare, profile="ebb"))
    assert missing.value.exit_code == 2
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", fresh_bucket.access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", fresh_bucket.secret_access_key)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", fresh_bucket.endpoint_url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    assert listed(S3Place(fresh_bucket.bucket)) == []


@contextlib.contextmanager
def token_service(keys: S3Server | None) -> Iterator[tuple[str, list[dict[str, list[str]]]]]:
    """A security token service that hands out these keys, or refuses; and what it was asked."""
    asked: list[dict[str, list[str]]] = []
    soon = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")

    class Service(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode()))
            status, text = (403, DENIAL) if keys is None else (200, GRANT.format(keys=keys, soon=soon))
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((HOST, 0), Service) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://{HOST}:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


GRANT = (
    '<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>'
    "<AccessKeyId>{keys.access_key_id}</AccessKeyId>"
    "<SecretAccessKey>{keys.secret_access_key}</SecretAccessKey><SessionToken/>"
    "<Expiration>{soon}</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"
)
DENIAL = (
    '<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type>'
    "<Code>AccessDenied</Code><Message>not you</Message></Error></ErrorResponse>"
)


def test_a_role_is_taken_on_once_and_kept(fresh_bucket: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"access_key_id": "own", "secret_access_key": "own-secret"}
    place = place_in(fresh_bucket, **own, role_arn=ROLE, external_id="x1")
    with token_service(fresh_bucket) as (url, asked):
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", url)
        put(place)
        assert get(place) == b"one"
    [question] = asked
    assert (question["RoleArn"], question["ExternalId"]) == ([ROLE], ["x1"])


def test_a_role_that_is_refused_is_named(fresh_bucket: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    place = place_in(fresh_bucket, role_arn=f"{ROLE}/other")
    with token_service(None) as (url, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", url)
        with pytest.raises(LoginRefused, match="not you") as raised:
            put(place)
    assert raised.value.where == f"{ROLE}/other"
    assert "sts:AssumeRole" in (raised.value.hint or "")


# --- Errors ------------------------------------------------------------------


def test_what_is_wrong_is_said_in_words(fresh_bucket: S3Server) -> None:
    stranger = servers.s3_user(fresh_bucket)
    wrong: list[tuple[S3Place, type[TidegateError], str, str]] = [
        (place_in(fresh_bucket, secret_access_key="wrong"), LoginRefused, "SignatureDoesNotMatch", "secret"),
        (place_in(fresh_bucket, access_key_id="nobody"), LoginRefused, "InvalidAccessKeyId", "access key"),
        (place_in(fresh_bucket.using("t-none")), LoginRefused, "no bucket `t-none`", "create it"),
        (place_in(stranger), LoginRefused, "s3:ListBucket", "grant s3:ListBucket"),
        (place_in(fresh_bucket.behind(1)), ConnectError, "no answer from S3", "endpoint_url"),
        (place_in(fresh_bucket, endpoint_url="nowhere"), ConfigError, "no address", "endpoint_url"),
        (place_in(fresh_bucket.using("Not a bucket")), ConfigError, "Not a bucket", "`bucket`"),
    ]
    for place, kind, words, hint in wrong:
        with pytest.raises(kind, match=words) as raised:
            listed(place)
        assert hint in (raised.value.hint or "")
        assert (place.secret_access_key or "?") not in str(raised.value)


def test_a_write_that_is_denied_names_what_it_needs(fresh_bucket: S3Server) -> None:
    with pytest.raises(LoginRefused, match="s3:PutObject") as raised:
        put(place_in(servers.s3_user(fresh_bucket)))
    assert raised.value.where == f"s3://{fresh_bucket.bucket}/k"


def test_absent_objects_and_unmet_conditions_are_left_to_whoever_asked(fresh_bucket: S3Server) -> None:
    place = place_in(fresh_bucket)
    with pytest.raises(Absent):
        get(place)
    put(place, IfNoneMatch="*")
    with pytest.raises(Unmet):
        put(place, IfNoneMatch="*")
    with pytest.raises(Unmet):
        put(place, IfMatch='"another"')


def test_a_lost_answer_is_unknown_for_a_write_and_can_be_asked_for_again(
    fresh_bucket: S3Server, toxiproxy: Toxiproxy
) -> None:
    with toxiproxy.before(fresh_bucket.port) as proxied:
        place = place_in(fresh_bucket.behind(proxied.port))
        with proxied.losing_answers():
            with pytest.raises(OutcomeUnknown, match="s3:PutObject") as raised:
                put(place)
            for read in (get, listed):  # and not: an empty object, an empty listing
                with pytest.raises(ConnectError):
                    read(place)
        assert raised.value.transient
        assert get(place) == b"one"


def test_a_write_whose_answer_was_lost_meets_itself_when_it_is_tried_again(
    fresh_bucket: S3Server, toxiproxy: Toxiproxy
) -> None:
    with toxiproxy.before(fresh_bucket.port) as proxied:
        place = place_in(fresh_bucket.behind(proxied.port))
        with losing_answer(proxied, place.client(), 1) as requests, pytest.raises(Unmet):
            put(place, IfNoneMatch="*")
        assert len(requests.sent) == 2
        assert get(place) == b"one"
        with losing_answer(proxied, place.client(), 1) as requests:
            assert listed(place) == ["k"]
        assert len(requests.sent) == 2


WHOLE_HEADERS = (
    b'HTTP/1.1 200 OK\r\nContent-Length: 0\r\nETag: "aed563ec"\r\nx-amz-object-size: 12\r\n'
    b"Last-Modified: Thu, 19 Nov 2026 21:06:57 GMT\r\nDate: Thu, 19 Nov 2026 21:07:01 GMT\r\n\r\n"
)
"""What a server says of an object, in an order in which half of it could be taken for all."""


@contextlib.contextmanager
def _answering() -> Iterator[tuple[S3Place, list[bytes]]]:
    """A server that says what is in the list, request by request, and hangs up."""
    answers: list[bytes] = []

    class Answering(StreamRequestHandler):
        def handle(self) -> None:
            length = 0
            while line := self.rfile.readline().strip():
                name, _, value = line.lower().partition(b":")
                length = int(value) if name == b"content-length" else length
            self.rfile.read(length)
            self.wfile.write(answers.pop(0))

    with ThreadingTCPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            address = f"http://127.0.0.1:{server.server_address[1]}"
            yield (
                S3Place("b", endpoint_url=address, region="r", access_key_id="a", secret_access_key="b"),
                answers,
            )
        finally:
            server.shutdown()
            thread.join()


def test_headers_that_break_off_anywhere_are_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """To Python's HTTP client they end there. A halved ETag or date would be believed."""
    monkeypatch.setattr("time.sleep", lambda _: None)  # between two attempts
    with _answering() as (place, answers):
        for end in range(len(b"HTTP/1.1 200 OK\r\n"), len(WHOLE_HEADERS) + 1):
            for operation in ("head_object", "put_object"):
                answers[:] = [WHOLE_HEADERS[:end]] + [WHOLE_HEADERS] * 3
                try:
                    with place.asking("s3:x", "k", refused=StateError, writes=True) as client:
                        found = getattr(client, operation)(Bucket="b", Key="k")
                except OutcomeUnknown:
                    continue
                assert found.get("ETag", '"aed563ec"') == '"aed563ec"', end
                if operation == "head_object":
                    assert found["LastModified"] == datetime(2026, 11, 19, 21, 6, 57, tzinfo=UTC), end


def test_an_object_whose_line_breaks_in_the_middle_is_asked_for_again(
    fresh_bucket: S3Server, toxiproxy: Toxiproxy
) -> None:
    content = b"tide" * 50_000
    fresh_bucket.client().put_object(Bucket=fresh_bucket.bucket, Key="k", Body=content)
    with toxiproxy.before(fresh_bucket.port) as proxied:
        place = place_in(fresh_bucket.behind(proxied.port))
        with losing_answer(proxied, place.client(), 1, times=2, after=10_000) as requests:
            assert place.get("k", refused=StateError)[0] == content
        assert len(requests.sent) == 3
        with proxied.losing_answers(after=10_000), pytest.raises(ConnectError):
            place.get("k", refused=StateError)

"""Stand-ins for services of AWS that the product asks over HTTP: boto3 speaks to them as to the real ones."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import pytest

Answer = tuple[int, str]


def identity(patch: pytest.MonkeyPatch) -> None:
    """Be somebody in AWS, and look for nobody else."""
    for name, value in {"ACCESS_KEY_ID": "AKIATEST", "SECRET_ACCESS_KEY": "s", "REGION": "eu-west-1"}.items():
        patch.setenv(f"AWS_{name}", value)
    patch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@dataclass
class Http:
    """A server that answers every request by a function, and remembers what it was asked."""

    url: str
    asked: list[str] = field(default_factory=list)


@contextmanager
def http(answer: Callable[[str, dict[str, str], bytes], Answer]) -> Iterator[Http]:
    """`answer` gets path, headers in small letters and body."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            server.asked.append(f"{self.path} {headers.get('x-amz-target', '')}".strip())
            status, text = answer(self.path, headers, body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST  # noqa: N815 - what the standard library calls it

        def log_message(self, format: str, *args: object) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server = Http(f"http://127.0.0.1:{listener.server_port}")
    thread = threading.Thread(target=listener.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()


@contextmanager
def secrets_manager(secrets: dict[str, str]) -> Iterator[Http]:
    def answer(path: str, headers: dict[str, str], body: bytes) -> Answer:
        assert path == "/"
        assert headers["authorization"].startswith("AWS4-HMAC-SHA256 ")
        name = json.loads(body)["SecretId"]
        if name not in secrets:
            return 400, json.dumps({"__type": "ResourceNotFoundException", "message": "not found"})
        return 200, json.dumps({"Name": name, "SecretString": secrets[name]})

    with http(answer) as server:
        yield server


@contextmanager
def redshift(passwords: Iterator[str]) -> Iterator[Http]:
    """Both the service of clusters and the one without."""

    def answer(path: str, headers: dict[str, str], body: bytes) -> Answer:
        del path
        if "serverless" in headers["authorization"]:
            asked = json.loads(body)
            return 200, json.dumps({"dbUser": f"IAM:{asked['workgroupName']}", "dbPassword": next(passwords)})
        form = parse_qs(body.decode())
        user, password = f"IAM:{form['DbUser'][0]}", next(passwords)
        inside = f"<DbUser>{user}</DbUser><DbPassword>{password}</DbPassword>"
        result = f"<GetClusterCredentialsResult>{inside}</GetClusterCredentialsResult>"
        return 200, f"<GetClusterCredentialsResponse>{result}</GetClusterCredentialsResponse>"

    with http(answer) as server:
        yield server

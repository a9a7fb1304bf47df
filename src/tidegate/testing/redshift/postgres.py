"""A PostgreSQL of one's own for the stand-in to stand before: in a folder that goes when it ends."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from tidegate.core.errors import ConfigError
from tidegate.testing.redshift.server import Backend

_USER = "redshift"
_PATIENCE_SECONDS = 60.0
_SOCKET = 5432
"""What the socket in the folder is called after."""


@contextmanager
def own_postgres(password: str | None = None) -> Iterator[Backend]:
    """Start one from the machine's packages. Raises `ConfigError` if there is none."""
    initdb, server = _program("initdb"), _program("postgres")
    folder = Path(tempfile.mkdtemp(prefix="tidegate-redshift-local-"))
    try:
        identity = _identity(folder)
        secret = password or secrets.token_hex(8)
        file = folder / "password"
        file.write_text(secret)
        file.chmod(0o644 if identity else 0o600)
        options = ["--username", _USER, "--pwfile", str(file), "--auth=scram-sha-256", "--encoding=UTF8"]
        made = subprocess.run(
            [initdb, "-D", str(folder / "data"), *options, "--locale=C.UTF-8", "--no-sync"],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            **identity,
        )
        file.unlink()
        if made.returncode:
            raise ConfigError(f"initdb failed: {made.stderr.strip()}", hint="name a server with --postgres")
        # No network: a port that is free now may be somebody else's by the time the server takes it.
        settings = [f"--port={_SOCKET}", "--listen_addresses=", f"--unix_socket_directories={folder}"]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
        command = [server, "-D", str(folder / "data"), *settings, "--fsync=off"]
        with subprocess.Popen(command, start_new_session=True, **quiet, **identity) as process:
            try:
                backend = Backend(str(folder), _SOCKET, _USER, secret)
                _wait_for(backend, process)
                yield backend
            finally:
                process.send_signal(signal.SIGINT)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _program(name: str) -> str:
    """The newest one; Debian keeps them out of the PATH."""
    versions = Path("/usr/lib/postgresql").glob(f"*/bin/{name}")
    newest = max(versions, key=lambda path: int(path.parts[-3]), default=None)
    found = str(newest) if newest else shutil.which(name)
    if found is None:
        raise ConfigError(
            f"the stand-in needs a PostgreSQL behind it, and {name} is not installed",
            hint="install Debian's package `postgresql`, or name a server with --postgres URL",
        )
    return found


def _identity(folder: Path) -> dict[str, Any]:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    try:
        owner = pwd.getpwnam("postgres")
    except KeyError:
        owner = pwd.getpwnam("nobody")
    os.chown(folder, owner.pw_uid, owner.pw_gid)
    return {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}


def _wait_for(backend: Backend, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            psycopg.connect(
                host=backend.host,
                port=backend.port,
                user=backend.user,
                password=backend.password,
                dbname="postgres",
            ).close()
        except psycopg.OperationalError as error:
            if process.poll() is not None or time.monotonic() > until:
                raise ConfigError("PostgreSQL did not start", hint="name a server with --postgres") from error
            time.sleep(0.1)
        else:
            return

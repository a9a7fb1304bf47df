"""Real servers for tests: private ports, throw-away folders, gone when the process is gone.

A server never outlives the process that started it, however that process ends: the kernel signals it when
its parent dies. What a killed process leaves behind is a folder, and the next one to start removes it.

`python -m tests.servers` starts them for a person and prints their addresses.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import pwd
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, assert_never

import psycopg
import pymysql
from psycopg.conninfo import make_conninfo

from tests import built
from tests.toxiproxy import Toxiproxy

HOST = "127.0.0.1"
USER = "tide"
START_TIMEOUT = 180.0
FOLDER_PREFIX = "tidegate-server-"
_TIDYING_SECONDS = 2.0
_PATIENCE = 120
"""Seconds within which a server answers also where the machine does something else for a while."""

Kind = Literal["mysql", "postgresql"]
Row = tuple[Any, ...]


class ServerError(RuntimeError):
    """A server could not be found, started or made ready."""


class Answering(Protocol):
    def answers(self) -> bool:
        """Whether the server is there already."""
        ...


Started = TypeVar("Started", bound=Answering)


class Cursor(Protocol):
    """What the cursors of both drivers have in common."""

    @property
    def description(self) -> Any: ...
    @property
    def rowcount(self) -> int: ...
    def execute(self, sql: Any, params: Any = ..., /) -> Any: ...
    def executemany(self, sql: Any, params: Any, /) -> Any: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> Any: ...
    def close(self) -> None: ...


class Connection(Protocol):
    """What the connections of both drivers have in common. Use it with `contextlib.closing`."""

    def cursor(self) -> Cursor: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Server:
    """Where a server listens, and how to log in as its administrator."""

    kind: Kind
    port: int
    password: str
    database: str
    pid: int
    folder: Path
    host: str = HOST
    user: str = USER

    @property
    def url(self) -> str:
        return f"{self.kind}://{self.user}:{self.password}@{self.host}:{self.port}/{self.database}"

    @property
    def config(self) -> dict[str, str | int]:
        """The entry for this server in `connections.yml`."""
        return {
            "type": self.kind,
            "host": self.host,
            "port": self.port,
            "database": self.database,
            "username": self.user,
            "password": self.password,
        }

    def using(self, database: str) -> Server:
        return replace(self, database=database)

    def logged_in_as(self, user: str, password: str) -> Server:
        return replace(self, user=user, password=password)

    def connect(self, *, autocommit: bool = False) -> Connection:
        match self.kind:
            case "mysql":
                return pymysql.connect(
                    host=self.host,
                    port=self.port,
                    user=self.user,
                    password=self.password,
                    database=self.database,
                    charset="utf8mb4",
                    autocommit=autocommit,
                    connect_timeout=_PATIENCE,
                )
            case "postgresql":
                return psycopg.connect(
                    host=self.host,
                    port=self.port,
                    user=self.user,
                    password=self.password,
                    dbname=self.database,
                    autocommit=autocommit,
                    connect_timeout=_PATIENCE,
                )
            case _:
                assert_never(self.kind)

    def execute(self, sql: str, params: Sequence[object] | None = None) -> list[Row]:
        """Run one statement in a connection of its own, commit it, and return its rows."""
        with closing(self.connect(autocommit=True)) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(sql, params)
            return list(cursor.fetchall()) if cursor.description else []

    def answers(self) -> bool:
        try:
            self.execute("SELECT 1")
        except (psycopg.OperationalError, pymysql.err.OperationalError):
            return False
        return True


@dataclass(frozen=True)
class S3Server:
    """Where an S3 server listens, the keys of its owner, and a bucket in it."""

    port: int
    secret_access_key: str
    pid: int
    folder: Path
    bucket: str = ""
    host: str = HOST
    access_key_id: str = USER
    region: str = "us-east-1"

    @property
    def endpoint_url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def config(self) -> dict[str, str]:
        """The entry for this bucket under `staging` or `state` in `connections.yml`."""
        return {
            "type": "s3",
            "bucket": self.bucket,
            "region": self.region,
            "endpoint_url": self.endpoint_url,
            "access_key_id": self.access_key_id,
            "secret_access_key": self.secret_access_key,
        }

    def using(self, bucket: str) -> S3Server:
        return replace(self, bucket=bucket)

    def logged_in_as(self, access_key_id: str, secret_access_key: str) -> S3Server:
        return replace(self, access_key_id=access_key_id, secret_access_key=secret_access_key)

    def behind(self, port: int) -> S3Server:
        """The same server, reached through a proxy on this port."""
        return replace(self, port=port)

    def client(self) -> Any:
        """A plain client, for looking and spoiling behind the product's back. It never asks twice."""
        return _s3_client(replace(self, bucket=""))

    def keys(self, prefix: str = "") -> list[str]:
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        return [found["Key"] for page in pages for found in page.get("Contents", ())]

    def requests(self) -> Counter[str]:
        """What this bucket was asked for so far, by whomever: `PutObject`, `ListObjectsV2` and so on."""
        lines = (self.folder / "requests.log").read_text().splitlines()
        asked = [line for line in lines if line.split()[1:2] == [self.bucket]]
        return Counter(found[1] for line in asked if (found := re.search(r" s3_(\w+) ", line)))

    def answers(self) -> bool:
        return _listens(self.port)


@cache
def _s3_client(server: S3Server) -> Any:
    import boto3
    from botocore.config import Config

    return boto3.session.Session().client(
        "s3",
        region_name=server.region,
        endpoint_url=server.endpoint_url,
        aws_access_key_id=server.access_key_id,
        aws_secret_access_key=server.secret_access_key,
        config=Config(retries={"total_max_attempts": 1}),
    )


# --- The servers -----------------------------------------------------------


@dataclass(frozen=True)
class Certificate:
    """What a server shows to those who encrypt, and the authority whose clients it trusts; all as PEM."""

    chain: bytes
    key: bytes
    authority: bytes


@contextmanager
def mariadb(
    *, system_timezone: str = "UTC", time_zone: str = "+00:00", certificate: Certificate | None = None
) -> Iterator[Server]:
    """A MariaDB. `time_zone="SYSTEM"` makes its sessions follow `system_timezone`."""
    with _folder("mysql") as home:
        password = secrets.token_hex(8)
        data = home.path / "data"
        home.run(
            [
                _program("mariadb-install-db"),
                "--no-defaults",
                f"--datadir={data}",
                f"--tmpdir={home.path}",  # a starting server removes the temporary tables it finds: others'
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--skip-name-resolve",
            ]
        )
        grants = home.write(
            "grants.sql",
            f"CREATE USER '{USER}'@'%' IDENTIFIED BY '{password}';\n"
            f"GRANT ALL PRIVILEGES ON *.* TO '{USER}'@'%' WITH GRANT OPTION;\n",
        )
        options = [
            "--no-defaults",
            f"--datadir={data}",
            f"--tmpdir={home.path}",
            f"--init-file={grants}",
            f"--bind-address={HOST}",
            "--socket=server.sock",
            "--pid-file=server.pid",
            "--skip-name-resolve",
            "--character-set-server=utf8mb4",
            f"--default-time-zone={time_zone}",
            "--max-connections=200",
            "--innodb-flush-log-at-trx-commit=0",
            "--skip-innodb-doublewrite",
            "--skip-log-bin",
            *(f"--ssl-{kind}={path}" for kind, path in home.certificate(certificate).items()),
        ]

        def command(port: int) -> list[str]:
            return [_program("mariadbd"), *options, f"--port={port}"]

        def server(port: int, pid: int) -> Server:
            return Server("mysql", port, password, "mysql", pid, home.path)

        with _running(home, command, server, stop=signal.SIGKILL, env={"TZ": system_timezone}) as ready:
            yield ready


@contextmanager
def postgres(*, certificate: Certificate | None = None, durable: bool = False) -> Iterator[Server]:
    """A PostgreSQL that a standby can follow; only a durable one keeps what it said was kept."""
    with _folder("postgres") as home:
        password = secrets.token_hex(8)
        data = home.path / "data"
        home.run(
            [
                _postgres_program("initdb"),
                f"--pgdata={data}",
                f"--username={USER}",
                f"--pwfile={home.write('password', password)}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--locale=C.UTF-8",
                "--no-sync",
                "--no-instructions",
            ]
        )
        with _running_postgres(home, data, password, certificate, durable=durable) as ready:
            yield ready


@contextmanager
def postgres_standby(primary: Server) -> Iterator[Server]:
    """A streaming standby of `primary`."""
    with _folder("postgres") as home:
        data = home.path / "data"
        origin = make_conninfo(
            host=primary.host, port=primary.port, user=primary.user, password=primary.password
        )
        home.run(
            [
                _postgres_program("pg_basebackup"),
                f"--pgdata={data}",
                f"--dbname={origin}",
                "--write-recovery-conf",
                "--wal-method=stream",
                "--checkpoint=fast",
                "--no-sync",
            ]
        )
        with _running_postgres(home, data, primary.password) as ready:
            yield ready


def wait_until_replayed(primary: Server, standby: Server, timeout: float = _PATIENCE) -> None:
    """Return once `standby` shows everything that `primary` has committed so far."""
    (position,) = primary.execute("SELECT pg_current_wal_insert_lsn()::text")[0]
    watch = standby.using("postgres")  # the database in question may be among what is still to come
    _wait_until(
        lambda: watch.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", [position]) == [(True,)],
        timeout,
        f"the standby to replay {position}",
    )


def _running_postgres(
    home: _Home,
    data: Path,
    password: str,
    certificate: Certificate | None = None,
    *,
    durable: bool = False,
) -> contextlib.AbstractContextManager[Server]:
    files = home.certificate(certificate)
    encryption = {f"ssl_{kind}_file": str(path) for kind, path in files.items()} | {"ssl": "on"}
    settings = {
        "listen_addresses": HOST,
        "unix_socket_directories": "",
        "timezone": "UTC",
        "log_timezone": "UTC",
        "fsync": "on" if durable else "off",
        "full_page_writes": "on" if durable else "off",
        "max_connections": "200",
        "max_prepared_transactions": "20",
        "wal_level": "replica",
        "hot_standby": "on",
        "max_wal_senders": "5",
        "wal_keep_size": "256MB",
        "wal_retrieve_retry_interval": "200ms",
        **(encryption if files else {}),
    }
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]

    def command(port: int) -> list[str]:
        return [_postgres_program("postgres"), "-D", str(data), "-p", str(port), *options]

    def server(port: int, pid: int) -> Server:
        return Server("postgresql", port, password, "postgres", pid, home.path)

    # SIGQUIT ends at once, like SIGKILL, but gives shared memory back to the system.
    return _running(home, command, server, stop=signal.SIGQUIT)


@contextmanager
def s3() -> Iterator[S3Server]:
    """An S3 server that keeps its promises about conditional writes, checksums and access."""
    program = built.ready(built.VERSITYGW)
    with _folder() as home:
        secret = secrets.token_hex(16)
        data = home.path / "data"
        data.mkdir()
        users = home.path / "users"
        users.mkdir()
        log = home.path / "requests.log"
        options = ["--keep-alive", "--quiet", f"--iam-dir={users}", f"--access-log={log}"]

        def command(port: int) -> list[str]:
            return [program, f"--port={HOST}:{port}", *options, "posix", *_attributes(home), str(data)]

        def server(port: int, pid: int) -> S3Server:
            return S3Server(port, secret, pid, home.path)

        keys = {"ROOT_ACCESS_KEY_ID": USER, "ROOT_SECRET_ACCESS_KEY": secret}  # not for the process list
        with _running(home, command, server, stop=signal.SIGKILL, env=keys) as ready:
            yield ready


def _attributes(home: _Home) -> list[str]:
    """Where the S3 server keeps what it knows of its objects: beside them, or apart."""
    try:
        os.setxattr(home.path, "user.tidegate", b"")
    except OSError:  # memory file systems of older kernels cannot
        apart = home.path / "attributes"
        apart.mkdir()
        return ["--sidecar", str(apart)]
    return []


@contextmanager
def toxiproxy() -> Iterator[Toxiproxy]:
    """A proxy for other servers, that slows, cuts and loses on demand."""
    program = built.ready(built.TOXIPROXY)
    with _folder() as home:

        def command(port: int) -> list[str]:
            return [program, "-host", HOST, "-port", str(port)]

        def server(port: int, pid: int) -> Toxiproxy:
            return Toxiproxy(port, pid, home.path)

        with _running(home, command, server, stop=signal.SIGKILL) as ready:
            yield ready


def s3_user(server: S3Server) -> S3Server:
    """A new user of the server, who may do nothing until a bucket's policy says so."""
    user = server.logged_in_as(f"u{secrets.token_hex(6)}", secrets.token_hex(16))
    new = [f"--access={user.access_key_id}", f"--secret={user.secret_access_key}", "--role=user"]
    subprocess.run(
        [built.ready(built.VERSITYGW), "admin", "create-user", *new],
        env={
            **os.environ,
            "ADMIN_ACCESS_KEY_ID": server.access_key_id,
            "ADMIN_SECRET_ACCESS_KEY": server.secret_access_key,
            "ADMIN_ENDPOINT_URL": server.endpoint_url,
        },
        capture_output=True,
        check=True,
    )
    return user


def policy(user: S3Server, *actions: str) -> str:
    """The policy of a bucket that allows the user these actions, and nobody else anything."""
    bucket = f"arn:aws:s3:::{user.bucket}"
    allowed = {"Effect": "Allow", "Principal": {"AWS": [user.access_key_id]}, "Action": list(actions)}
    return json.dumps(
        {"Version": "2012-10-17", "Statement": [{**allowed, "Resource": [bucket, f"{bucket}/*"]}]}
    )


# --- A bucket per test -----------------------------------------------------


@contextmanager
def fresh_bucket(server: S3Server) -> Iterator[S3Server]:
    """A new, empty bucket, removed at the end with all it holds."""
    bucket = server.using(f"t-{secrets.token_hex(6)}")
    bucket.client().create_bucket(Bucket=bucket.bucket)
    try:
        yield bucket
    finally:
        shutil.rmtree(server.folder / "data" / bucket.bucket, ignore_errors=True)


# --- A bastion --------------------------------------------------------------


@dataclass
class Bastion:
    """An sshd that lets the user of the tests in, with one key, and can be stopped and started again."""

    port: int
    user: str
    key: Path
    """The private key that opens it."""
    known_hosts: Path
    _home: _Home
    _process: subprocess.Popen[bytes] | None = None

    def tunnel(self, **changes: Any) -> dict[str, Any]:
        """The `ssh_tunnel` of a connection that goes through it."""
        return {
            "host": HOST,
            "port": self.port,
            "username": self.user,
            "private_key_path": str(self.key),
            "known_hosts": str(self.known_hosts),
            **changes,
        }

    def start(self) -> None:
        command = [_program("sshd"), "-D", "-e", "-f", str(self._home.path / "sshd_config")]
        self._process = process = self._home.start(command, signal.SIGKILL, {})

        def listening() -> bool:
            if process.poll() is not None:
                raise ServerError(f"sshd ended with {process.returncode}\n{self._home.tail()}")
            with socket.socket() as probe:
                return probe.connect_ex((HOST, self.port)) == 0

        _wait_until(listening, START_TIMEOUT, f"sshd on port {self.port}")

    def stop(self) -> None:
        """Kill it and every connection through it, at once."""
        if self._process is None:
            return
        for pid in [self._process.pid, *_descendants(self._process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    @property
    def log(self) -> str:
        return self._home.log.read_text(errors="replace")


@contextmanager
def bastion() -> Iterator[Bastion]:
    """An sshd on a port of its own."""
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # it insists, and only its service would make it
    with _folder() as home:
        host_key, user_key = new_ssh_key(home.path / "host"), new_ssh_key(home.path / "user")
        port = free_port()
        home.write(
            "sshd_config",
            f"ListenAddress {HOST}:{port}\nHostKey {host_key}\nPidFile none\nUsePAM no\nStrictModes no\n"
            f"AuthorizedKeysFile {user_key}.pub\nPasswordAuthentication no\nPermitRootLogin yes\n"
            "MaxStartups 100\nLogLevel VERBOSE\n",
        )
        public = host_key.with_suffix(".pub").read_text()
        known = home.write("known_hosts", f"[{HOST}]:{port} {public}")
        server = Bastion(port, pwd.getpwuid(os.geteuid()).pw_name, user_key, known, home)
        server.start()
        try:
            yield server
        finally:
            server.stop()


def new_ssh_key(path: Path) -> Path:
    """A new key pair: the private half at `path`, the public one beside it."""
    command = [_program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return path


def _descendants(pid: int) -> list[int]:
    parents: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
    children = [child for child, parent in parents.items() if parent == pid]
    return [found for child in children for found in (child, *_descendants(child))]


# --- A database per test ---------------------------------------------------


@contextmanager
def fresh_database(server: Server) -> Iterator[Server]:
    """A new, empty database, dropped at the end with whatever still uses it."""
    database = server.using(f"t_{secrets.token_hex(6)}")
    server.execute(f"CREATE DATABASE {database.database}")
    try:
        yield database
    finally:
        match server.kind:
            case "mysql":
                _drop_mysql(server, database.database)
            case "postgresql":
                _drop_postgresql(server, database)


def _drop_mysql(server: Server, name: str) -> None:
    def sessions() -> list[Row]:
        return server.execute("SELECT id FROM information_schema.processlist WHERE db = %s", [name])

    for (session,) in sessions():
        with contextlib.suppress(pymysql.err.OperationalError):  # it may have ended by itself
            server.execute(f"KILL CONNECTION {session}")
    _wait_until(lambda: not sessions(), _PATIENCE, f"the sessions of {name} to end")
    for *_, branch in server.execute("XA RECOVER FORMAT='SQL'"):
        server.execute(f"XA ROLLBACK {branch}")
    server.execute(f"SET STATEMENT lock_wait_timeout={_PATIENCE} FOR DROP DATABASE {name}")


def _drop_postgresql(server: Server, database: Server) -> None:
    prepared = server.execute("SELECT gid FROM pg_prepared_xacts WHERE database = %s", [database.database])
    for (gid,) in prepared:
        quoted = gid.replace("'", "''")
        database.execute(f"ROLLBACK PREPARED '{quoted}'")
    server.execute(f"DROP DATABASE {database.database} WITH (FORCE)")


# --- Programs --------------------------------------------------------------


def _program(name: str) -> str:
    found = shutil.which(
        name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    )
    if found is None:
        raise ServerError(f"{name} is not installed; `scripts/setup test` installs it")
    return found


def _postgres_program(name: str) -> str:
    """The program of the newest PostgreSQL installed; Debian keeps them out of the PATH."""
    versions = Path("/usr/lib/postgresql").glob(f"*/bin/{name}")
    newest = max(versions, key=lambda path: int(path.parts[-3]), default=None)
    return str(newest) if newest else _program(name)


# --- Folders and processes -------------------------------------------------


@dataclass(frozen=True)
class _Home:
    """The folder of one server, and the user it runs as: database servers refuse to run as root."""

    path: Path
    owner: pwd.struct_passwd | None

    @property
    def log(self) -> Path:
        return self.path / "server.log"

    def write(self, name: str, text: str) -> Path:
        file = self.path / name
        file.write_text(text)
        if self.owner:
            os.chown(file, self.owner.pw_uid, self.owner.pw_gid)
        return file

    def certificate(self, certificate: Certificate | None) -> dict[str, Path]:
        """The files of a certificate by what servers call them; none if there is none."""
        if certificate is None:
            return {}
        parts = {"ca": certificate.authority, "cert": certificate.chain, "key": certificate.key}
        files = {kind: self.write(f"{kind}.pem", part.decode()) for kind, part in parts.items()}
        for file in files.values():
            file.chmod(0o600)
        return files

    def run(self, command: Sequence[str]) -> None:
        with self.log.open("ab") as log:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False, **self._identity({})
            )
        if done.returncode != 0:
            raise ServerError(f"{command[0]} failed with {done.returncode}\n{self.tail()}")

    def start(
        self, command: Sequence[str], on_parent_death: signal.Signals, env: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the tests, which then stop their servers
                preexec_fn=_signalled_on_parent_death(on_parent_death),  # noqa: PLW1509 - it takes no lock
                **self._identity(env),
            )

    def tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _identity(self, env: Mapping[str, str]) -> dict[str, Any]:
        shared: dict[str, Any] = {"cwd": self.path, "env": {**os.environ, "HOME": str(self.path), **env}}
        if self.owner is None:
            return shared
        return {**shared, "user": self.owner.pw_uid, "group": self.owner.pw_gid, "extra_groups": []}


@contextmanager
def _folder(preferred_user: str | None = None) -> Iterator[_Home]:
    """A folder for one server. Without a preferred user, the server runs as whoever runs the tests."""
    _remove_orphans()
    path = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
    lock = _try_lock(path)
    owner = _unprivileged(preferred_user) if preferred_user and os.geteuid() == 0 else None
    if owner:
        os.chown(path, owner.pw_uid, owner.pw_gid)
    try:
        yield _Home(path, owner)
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _unprivileged(preferred: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(preferred)
    except KeyError:
        return pwd.getpwnam("nobody")


def _remove_orphans() -> None:
    """Folders of processes that were killed: nobody holds their lock any more.

    After a while it is left to the next server: who starts one does not want to wait for the past.
    """
    enough = time.monotonic() + _TIDYING_SECONDS
    for path in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or removed by another process
            if time.time() - path.stat().st_mtime < START_TIMEOUT:
                continue  # perhaps being made this very moment, and not locked yet
            if time.monotonic() > enough:
                return
            lock = _try_lock(path)
            if lock is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def _try_lock(path: Path) -> int | None:
    """Lock a folder for as long as this process lives; None when another one holds it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1


def _signalled_on_parent_death(number: signal.Signals) -> Callable[[], None]:
    """For the child, between fork and exec, after it has become its final user (which resets the wish)."""
    parent = os.getpid()

    def ask_kernel() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:  # it died before we could ask
            os._exit(1)

    return ask_kernel


@contextmanager
def _running(
    home: _Home,
    command: Callable[[int], Sequence[str]],
    server: Callable[[int, int], Started],
    stop: signal.Signals,
    env: Mapping[str, str] | None = None,
) -> Iterator[Started]:
    """Start on a free port, wait for the first answer; at the end stop abruptly, the data is thrown away."""
    port = free_port()
    process = home.start(command(port), stop, env or {})
    try:
        ready = server(port, process.pid)
        _wait_until(lambda: _answers(ready, process, home), START_TIMEOUT, f"the server on port {port}")
        yield ready
    finally:
        process.send_signal(stop)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(server: Answering, process: subprocess.Popen[bytes], home: _Home) -> bool:
    if process.poll() is not None:
        raise ServerError(f"the server ended with {process.returncode}\n{home.tail()}")
    return server.answers()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=_PATIENCE):
        return True
    return False


def free_port() -> int:
    """A port for this process alone, below those the kernel gives to outgoing connections.

    A server takes it only a while later, and other processes look for ports meanwhile: so it is claimed, by a
    name that the kernel gives to one process at a time and frees when that one ends.
    """
    chance = random.SystemRandom()  # the usual one may have been seeded, in every process alike
    while True:
        port = chance.randrange(20_000, 32_000)
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0tidegate-tests-port-{port}")
            with socket.socket() as probe:
                probe.bind((HOST, port))
        except OSError:
            claim.close()
            continue
        claim.detach()
        return port


@contextmanager
def closed_port() -> Iterator[int]:
    """A port at which nobody listens, and nobody can while the block runs."""
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        yield int(taken.getsockname()[1])


def _wait_until(condition: Callable[[], bool], timeout: float, what: str) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise ServerError(f"waited {timeout:g} s in vain for {what}")
        time.sleep(0.05)


def main() -> None:
    with mariadb() as one, postgres() as two, s3() as three, toxiproxy() as four:
        keys = f"access key {three.access_key_id}, secret {three.secret_access_key}"
        print(one.url, two.url, f"S3: {three.endpoint_url}, {keys}", f"toxiproxy: {four.url}", sep="\n")
        print("Ctrl-C stops them all.", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()

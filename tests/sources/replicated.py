"""A MariaDB and its replica. They write a binary log, which the servers of other tests do without."""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.servers import HOST, USER, Server, _folder, _program, _running


@contextmanager
def mariadb_pair() -> Iterator[tuple[Server, Server]]:
    with ExitStack() as stack:
        password = secrets.token_hex(8)
        primary = stack.enter_context(_server(1, password))
        replica = stack.enter_context(_server(2, password))
        replica.execute(
            f"CHANGE MASTER TO master_host = '{HOST}', master_port = {primary.port}, master_user = '{USER}', "
            f"master_password = '{password}', master_connect_retry = 1, master_use_gtid = slave_pos"
        )
        replica.execute("START SLAVE")
        yield primary, replica


@contextmanager
def _server(number: int, password: str) -> Iterator[Server]:
    with _folder("mysql") as home:
        data = home.path / "data"
        home.run(
            [
                _program("mariadb-install-db"),
                "--no-defaults",
                f"--datadir={data}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--skip-name-resolve",
            ]
        )
        grants = home.write(
            "grants.sql",
            "SET sql_log_bin = 0;\n"
            f"CREATE USER '{USER}'@'%' IDENTIFIED BY '{password}';\n"
            f"GRANT ALL PRIVILEGES ON *.* TO '{USER}'@'%' WITH GRANT OPTION;\n",
        )
        options = [
            _program("mariadbd"),
            "--no-defaults",
            f"--datadir={data}",
            f"--init-file={grants}",
            f"--bind-address={HOST}",
            "--socket=server.sock",
            "--pid-file=server.pid",
            "--skip-name-resolve",
            "--character-set-server=utf8mb4",
            "--default-time-zone=+00:00",
            "--innodb-flush-log-at-trx-commit=0",
            "--log-bin=log",
            "--binlog-format=row",
            f"--server-id={number}",
            *(["--read-only"] if number > 1 else []),
        ]

        def server(port: int, pid: int) -> Server:
            return Server("mysql", port, password, "mysql", pid, home.path)

        with _running(home, lambda port: [*options, f"--port={port}"], server, stop=signal.SIGKILL) as ready:
            yield ready


def wait_until_applied(primary: Server, replica: Server) -> None:
    [(position,)] = primary.execute("SELECT @@GLOBAL.gtid_binlog_pos")
    deadline = time.monotonic() + 120
    while replica.execute("SELECT MASTER_GTID_WAIT(%s, 1)", [position]) != [(0,)]:
        assert time.monotonic() < deadline, replica.execute("SHOW SLAVE STATUS")

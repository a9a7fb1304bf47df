"""`tidegate redshift-local`: a stand-in of one's own, from the machine's packages."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from contextlib import closing

import redshift_connector


def test_it_starts_a_postgresql_answers_the_driver_and_ends_on_ctrl_c() -> None:
    command = [sys.executable, "-m", "tidegate.cli", "redshift-local", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = re.search(r":(\d+), database postgres, user (\w+), password (\w+)", process.stdout.readline())
        assert told is not None
        with closing(
            redshift_connector.connect(
                host="127.0.0.1",
                port=int(told[1]),
                database="postgres",
                user=told[2],
                password=told[3],
                ssl=False,
            )
        ) as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT count(*) FROM svv_tables WHERE table_name = 'nothing'")
            assert [tuple(row) for row in cursor.fetchall()] == [(0,)]
        process.send_signal(signal.SIGINT)
        assert process.wait(600) == 130


def test_an_address_that_is_none_is_said() -> None:
    command = [sys.executable, "-m", "tidegate.cli", "redshift-local", "--postgres", "mysql://x"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--postgres is no address" in done.stderr

"""Through a real bastion, and what is said when it does not let us through."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests import servers
from tests.authority import Authority
from tests.reach.paths import ALL, path
from tests.servers import Bastion, Server
from tidegate.config.connection_models import SshTunnel
from tidegate.core.errors import ConfigError, ConnectError, TunnelRefused
from tidegate.reach import tunnel
from tidegate.reach.login import Login, Tls, login_of, tunnel_of
from tidegate.reach.tunnel import Tunnel, close_all, for_tasks, near_end
from tidegate.sources import mysql_session, postgresql_session

on_every_path = pytest.mark.parametrize(("kind", "name"), ALL)


@pytest.fixture(autouse=True)
def closed_afterwards() -> Iterator[None]:
    yield
    close_all()


def through(bastion: Bastion, **changes: Any) -> Tunnel:
    tunnel = tunnel_of(SshTunnel.model_validate(bastion.tunnel(**changes)))
    assert tunnel is not None
    return tunnel


def ssh_processes(bastion: Bastion) -> list[str]:
    """The command lines of the clients that hold a tunnel through it open."""
    lines = subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True, check=True).stdout
    ours = re.compile(rf"^\S*ssh -N .* -p {bastion.port} ")
    return [line for line in lines.splitlines() if ours.search(line)]


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.05)


@pytest.fixture
def behind(kind: str, bastion: Bastion, request: pytest.FixtureRequest) -> Login:
    """A server behind the bastion, under the name that its certificate holds and the bastion knows."""
    server: Server = request.getfixturevalue(f"{'mariadb' if kind == 'mysql' else 'postgres'}_tls")
    return replace(login_of(server.config), host="localhost", tunnel=through(bastion))


@pytest.fixture(scope="session")
def ca(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(authority.files(tmp_path_factory.mktemp("authority"))["ca"])


@on_every_path
def test_every_path_goes_through_and_verifies_the_real_name(
    kind: str, name: str, behind: Login, bastion: Bastion, ca: str
) -> None:
    assert path(kind, name)(replace(behind, tls=Tls("verify-full", ca))) != ""
    assert path(kind, name)(replace(behind, tls=Tls("disable"))) == ""
    assert len(ssh_processes(bastion)) == 1


@pytest.mark.parametrize("kind", ["mysql", "postgresql"])
def test_tasks_on_this_machine_use_the_tunnel_of_the_driver(
    kind: str, behind: Login, bastion: Bastion
) -> None:
    shared = for_tasks(behind)
    assert shared.endpoint() == ("127.0.0.1", near_end(behind.tunnel, behind.host, behind.port))  # type: ignore[arg-type]
    assert len(ssh_processes(bastion)) == 1
    assert shared.tunnel is not None
    assert shared.tunnel.shared is not None
    elsewhere = replace(shared.tunnel, shared=replace(shared.tunnel.shared, machine="another"))
    assert near_end(elsewhere, behind.host, behind.port) != shared.endpoint()[1]
    assert len(ssh_processes(bastion)) == 2


def test_a_wrong_key_is_refused_in_words(bastion: Bastion, tmp_path: Path) -> None:
    wrong = servers.new_ssh_key(tmp_path / "wrong")
    with pytest.raises(TunnelRefused) as refused:
        near_end(through(bastion, private_key_path=str(wrong)), "localhost", 1)
    assert f"the bastion refused the key {wrong} of user `{bastion.user}`" in str(refused.value)
    assert "authorized_keys" in str(refused.value)


def test_a_key_that_others_can_read_and_one_that_is_not_there(bastion: Bastion, tmp_path: Path) -> None:
    open_key = tmp_path / "open"
    open_key.write_bytes(bastion.key.read_bytes())
    open_key.chmod(0o644)
    with pytest.raises(TunnelRefused, match=f"chmod 600 {open_key}"):
        near_end(through(bastion, private_key_path=str(open_key)), "localhost", 1)
    with pytest.raises(TunnelRefused, match=r"the private key cannot be read: .*missing"):
        near_end(through(bastion, private_key_path=str(tmp_path / "missing")), "localhost", 1)


def test_the_keys_of_an_agent_are_used(
    bastion: Bastion, mariadb: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(tmp_path / "agent")], stdout=subprocess.DEVNULL)
    try:
        wait_until((tmp_path / "agent").exists)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
        alone = through(bastion, private_key_path=None)
        with pytest.raises(TunnelRefused, match="any key of the agent"):
            near_end(alone, mariadb.host, mariadb.port)
        subprocess.run(["ssh-add", "-q", str(bastion.key)], check=True)
        login = replace(login_of(mariadb.config), tunnel=alone)
        mysql_session.connect(login).close()
    finally:
        agent.terminate()
        agent.wait()


def test_an_unknown_host_key_is_refused_with_the_command_that_adds_it(
    bastion: Bastion, tmp_path: Path
) -> None:
    known = tmp_path / "known hosts"
    known.touch()
    tunnel = through(bastion, known_hosts=str(known))
    with pytest.raises(TunnelRefused, match="host key is not known") as refused:
        near_end(tunnel, "localhost", 1)
    assert known.read_text() == ""  # it is not learned by itself
    assert refused.value.hint is not None
    command = refused.value.hint.partition("then: ")[2]
    subprocess.run(["sh", "-c", command], check=True, capture_output=True)
    assert near_end(tunnel, "localhost", 1)


def test_a_changed_host_key_is_refused_with_the_command_that_replaces_it(
    bastion: Bastion, tmp_path: Path
) -> None:
    other = servers.new_ssh_key(tmp_path / "other").with_suffix(".pub").read_text()
    known = tmp_path / "known_hosts"
    known.write_text(f"[{servers.HOST}]:{bastion.port} {other}")
    tunnel = through(bastion, known_hosts=str(known))
    with pytest.raises(TunnelRefused, match="host key has changed") as refused:
        near_end(tunnel, "localhost", 1)
    assert refused.value.hint is not None
    command = refused.value.hint.partition("then: ")[2]
    subprocess.run(["sh", "-c", command], check=True, capture_output=True)
    assert near_end(tunnel, "localhost", 1)


def test_a_bastion_that_cannot_be_reached_may_come_back(bastion: Bastion) -> None:
    with pytest.raises(ConnectError, match=r"cannot reach the bastion.*Connection refused") as refused:
        near_end(through(bastion, port=1), "localhost", 1)
    assert refused.value.transient
    with pytest.raises(ConnectError, match=r"cannot reach the bastion.*resolve"):
        near_end(through(bastion, host="nowhere.invalid"), "localhost", 1)


@pytest.mark.parametrize(
    "connect", [mysql_session.connect, postgresql_session.connect], ids=["mysql", "postgresql"]
)
def test_a_server_that_the_bastion_cannot_reach_is_named(
    connect: Callable[[Login], object], bastion: Bastion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnel, "_COMPLAINT_SECONDS", 60.0)  # a busy machine hears of it later
    login = Login("127.0.0.1", 1, "shop", "me", "secret", tunnel=through(bastion))
    with pytest.raises(ConnectError) as refused:
        connect(login)
    assert "the bastion cannot reach 127.0.0.1:1: Connection refused" in str(refused.value)
    with pytest.raises(ConnectError, match=r"the bastion cannot reach nowhere\.invalid:1"):
        connect(replace(login, host="nowhere.invalid"))


def test_a_chosen_port_is_used_and_a_taken_one_named(bastion: Bastion) -> None:
    port = servers.free_port()
    with (
        socket.create_server((servers.HOST, port)),
        pytest.raises(TunnelRefused, match=f"port {port} of this machine is taken"),
    ):
        near_end(through(bastion, local_port=port), "localhost", 1)
    assert near_end(through(bastion, local_port=port), "localhost", 1) == port


def test_a_broken_tunnel_is_opened_again_at_the_same_port(mariadb: Server) -> None:
    with servers.bastion() as own:
        login = replace(login_of(mariadb.config), tunnel=through(own))
        mysql_session.connect(login).close()
        endpoint = for_tasks(login).endpoint()
        own.stop()
        # That it cannot be reached, or where ssh has only just noticed, that the tunnel through it broke.
        with pytest.raises(ConnectError, match="the bastion"):
            mysql_session.connect(login)
        own.start()
        # By itself: tasks know the port alone, and ask nobody.
        wait_until(lambda: _answers(endpoint))
        mysql_session.connect(for_tasks(login)).close()
        assert for_tasks(login).endpoint() == endpoint


def _answers(endpoint: tuple[str, int]) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(endpoint) == 0


def test_many_threads_share_one_tunnel(bastion: Bastion, mariadb: Server) -> None:
    ports: list[int] = []
    tunnel = through(bastion)

    def ask() -> None:
        ports.append(near_end(tunnel, mariadb.host, mariadb.port))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ports) == 8
    assert len(set(ports)) == 1
    assert len(ssh_processes(bastion)) == 1


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_a_tunnel_never_outlives_its_process(ending: signal.Signals, bastion: Bastion) -> None:
    script = f"""
        import time
        from tidegate.reach.tunnel import near_end, Tunnel
        print(near_end({through(bastion)!r}, "localhost", 1), flush=True)
        time.sleep(600)
    """
    process = subprocess.Popen([sys.executable, "-c", dedent(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port = int(process.stdout.readline())
    assert any(f":{port}:" in line for line in ssh_processes(bastion))
    os.kill(process.pid, ending)
    process.wait()
    process.stdout.close()
    wait_until(lambda: not any(f":{port}:" in line for line in ssh_processes(bastion)))


def test_no_secret_is_in_the_process_list(bastion: Bastion, mariadb: Server) -> None:
    login = replace(login_of(mariadb.config), tunnel=through(bastion))
    mysql_session.connect(login).close()
    assert ssh_processes(bastion)
    everything = subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True, check=True).stdout
    assert mariadb.password not in everything


def test_a_machine_without_ssh_is_told_what_to_install(
    bastion: Bastion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="openssh-client"):
        near_end(through(bastion), "localhost", 1)

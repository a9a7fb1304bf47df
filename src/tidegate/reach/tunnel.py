"""SSH tunnels through a bastion: OpenSSH's own client forwards a port, and is kept alive while we are.

    port = near_end(Tunnel("bastion", username="ops"), "db.internal", 5432)

Every process has its own tunnels, one for each server behind a bastion, opened by the first connection and
used by all later ones. Tasks on the machine of the driver use the driver's; tasks elsewhere open their own.
"""

from __future__ import annotations

import atexit
import logging
import os
import platform
import re
import shlex
import shutil
import signal
import socket
import subprocess
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.core.errors import ConfigError, ConnectError, TidegateError, TunnelRefused

if TYPE_CHECKING:
    from tidegate.reach.login import Login

LOOPBACK = "127.0.0.1"

_OPEN_SECONDS = 20.0
"""How long to wait for a tunnel: ssh itself gives up on a bastion that does not answer after half of it."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_COMPLAINT_SECONDS = 0.5
_PORT_ATTEMPTS = 5
_READY = "tidegate: forwarding"

_WATCHED = '"$@" </dev/null & ssh=$!; exec >/dev/null 2>&1; cat; kill "$ssh"; wait "$ssh"'
"""Ends ssh when our end of the pipe closes, however we end, and then itself. Silent: only ssh is heard."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Shared:
    """The near end of a tunnel that another process on a machine keeps open."""

    machine: str
    port: int


@dataclass(frozen=True, slots=True)
class Tunnel:
    """The way through a bastion. What is not said here is what the user's own ssh configuration says."""

    host: str
    port: int | None = None
    username: str | None = None
    private_key: str | None = None
    """None: the keys of the agent, and the user's usual ones."""
    known_hosts: str | None = None
    """None: the user's and the system's."""
    local_port: int = 0
    """0: any free port."""
    shared: Shared | None = None

    @property
    def where(self) -> str:
        user = f"{self.username}@" if self.username else ""
        return f"{user}{self.host}:{self.port or 22}"


def near_end(tunnel: Tunnel, host: str, port: int) -> int:
    """The port of this machine that leads to a server, opening the tunnel if need be."""
    if tunnel.shared is not None and tunnel.shared.machine == machine():
        return tunnel.shared.port
    return _forward(tunnel, host, port).port()


def for_tasks(login: Login) -> Login:
    """A login as tasks get it: on this machine they use the tunnel that is open here."""
    if login.tunnel is None:
        return login
    port = near_end(login.tunnel, login.host, login.port)
    return replace(login, tunnel=replace(login.tunnel, shared=Shared(machine(), port)))


def beyond(login: Login) -> ConnectError | None:
    """What the bastion said about the server behind it, if it could not reach it, or that it went away."""
    if login.tunnel is None or login.tunnel.shared is not None:
        return None
    forward = _forward(login.tunnel, login.host, login.port)
    complaint = forward.complaint()
    if complaint is None:
        return forward.broken()
    return ConnectError(
        f"the bastion cannot reach {login.host}:{login.port}: {complaint}",
        where=f"{login.where} through {login.tunnel.where}",
        hint="check host and port as the bastion sees them, and that it may forward there",
    )


def machine() -> str:
    """Names this machine, and on it the network that 127.0.0.1 belongs to."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"  # noqa: PTH116 - not a path but a namespace
    except OSError:  # not Linux
        return platform.node()


def close_all() -> None:
    """Close the tunnels of this process."""
    with _lock:
        mine = [key for key in _forwards if key[0] == os.getpid()]
        closing = [_forwards.pop(key) for key in mine]
    for forward in closing:
        forward.close()


_lock = threading.Lock()
_forwards: dict[tuple[int, Tunnel, str, int], _Forward] = {}
atexit.register(close_all)


def _forward(tunnel: Tunnel, host: str, port: int) -> _Forward:
    key = (os.getpid(), tunnel, host, port)  # a forked child must not use what its parent watches over
    with _lock:
        if key not in _forwards:
            _forwards[key] = _Forward(tunnel, host, port)
        return _forwards[key]


class _Forward:
    """A forwarded port, opened again whenever it breaks."""

    def __init__(self, tunnel: Tunnel, host: str, port: int) -> None:
        self._tunnel = tunnel
        self._target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ssh: subprocess.Popen[str] | None = None
        self._local = tunnel.local_port
        self._open = False
        self._closed = False
        self._wanted = False
        """Somebody waits: the next attempt is due at once."""
        self._failure: TidegateError | None = None
        self._said: deque[str] = deque(maxlen=50)

    def port(self) -> int:
        """Where to connect, once it works. An earlier failure is no answer: it is tried again now."""
        with self._changed:
            if not self._open:
                self._failure = None
                self._keep_open()
                self._changed.wait_for(lambda: self._open or self._failure, _OPEN_SECONDS)
            if self._open:
                return self._local
            raise self._failure or ConnectError(
                "the tunnel did not open in time", where=self._tunnel.where, hint="is the bastion reachable?"
            )

    def complaint(self) -> str | None:
        """The last thing ssh said about a connection that the bastion could not make; said once."""
        with self._changed:
            self._changed.wait_for(lambda: any(map(_open_failed, self._said)), _COMPLAINT_SECONDS)
            found = [failed for line in self._said if (failed := _open_failed(line))]
            self._said.clear()
            return found[-1] if found else None

    def broken(self) -> ConnectError | None:
        """Why it is not open at this moment; None if it is."""
        with self._changed:
            if self._open:
                return None
            if isinstance(self._failure, ConnectError):
                return self._failure
            return ConnectError(
                "the tunnel through the bastion broke",
                where=self._tunnel.where,
                hint="it is opened again as soon as the bastion answers; then run it again",
            )

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            ssh = self._ssh
        if ssh is not None:
            _end(ssh)

    def _keep_open(self) -> None:
        """Have a thread that opens it, and opens it again; it ends with a failure that will not pass."""
        self._wanted = True
        self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep, name=f"tunnel {self._target}", daemon=True)
            self._thread.start()

    def _keep(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            failure = self._once()
            with self._changed:
                self._failure = failure
                self._changed.notify_all()
                if self._closed or (failure is not None and not failure.transient):
                    self._thread = None
                    return
                self._wanted = self._wanted and failure is None
                self._changed.wait_for(lambda: self._wanted or self._closed, pause)
                if self._closed:
                    return
            pause = _FIRST_PAUSE if failure is None else min(2 * pause, _LONGEST_PAUSE)

    def _once(self) -> TidegateError | None:
        """Run ssh until it ends; why the port never opened, or None if it did in the meantime."""
        for _ in range(_PORT_ATTEMPTS):
            try:
                worked = self._listen(self._start())
            except TidegateError as error:
                return error
            if worked:
                self._tell_of_the_end()
                return None
            if not self._port_taken():
                break
            self._local = self._tunnel.local_port
        return in_words(self._tunnel, list(self._said))

    def _start(self) -> subprocess.Popen[str]:
        with self._changed:
            self._said.clear()
        self._local = self._local or _free_port()
        forward = f"{LOOPBACK}:{self._local}:{self._target}"
        return subprocess.Popen(
            ["sh", "-c", _WATCHED, "tidegate-tunnel", *command(self._tunnel, forward)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is for us: a run that is stopped still finishes its chunk
        )

    def _listen(self, ssh: subprocess.Popen[str]) -> bool:
        """Hear what ssh says until it ends; whether it said that the port is open."""
        with self._changed:
            self._ssh = ssh
            closed = self._closed
        if closed:  # in between
            _end(ssh)
        assert ssh.stdout is not None
        with ssh.stdout as heard:
            for line in heard:
                self._hear(line.rstrip())
        with self._changed:
            worked, self._open = self._open, False
        _end(ssh)
        return worked

    def _hear(self, line: str) -> None:
        with self._changed:
            if line == _READY:
                self._open, self._wanted = True, False
            else:
                self._said.append(line)
            self._changed.notify_all()

    def _tell_of_the_end(self) -> None:
        if not self._closed:
            _log.warning("the tunnel through %s broke: %s", self._tunnel.where, " / ".join(self._said))

    def _port_taken(self) -> bool:
        return not self._tunnel.local_port and any("Address already in use" in line for line in self._said)


def command(tunnel: Tunnel, forward: str) -> list[str]:
    """The ssh that forwards and does nothing else. It asks nobody anything, and trusts no unknown bastion."""
    options = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "UpdateHostKeys": "no",
        "ExitOnForwardFailure": "yes",
        "ConnectTimeout": "10",
        "ServerAliveInterval": "10",
        "ServerAliveCountMax": "3",
        "TCPKeepAlive": "yes",
        "ControlMaster": "no",
        "ControlPath": "none",
        "ClearAllForwardings": "no",
        "RequestTTY": "no",
        "PermitLocalCommand": "yes",
        "LocalCommand": f"echo {shlex.quote(_READY)}",  # run once the port is open
        "LogLevel": "INFO",
        **_identity(tunnel),
        **_trust(tunnel),
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    port = ["-p", str(tunnel.port)] if tunnel.port else []
    user = ["-l", tunnel.username] if tunnel.username else []
    return [_ssh(), "-N", "-L", forward, *words, *port, *user, "--", tunnel.host]


def _identity(tunnel: Tunnel) -> dict[str, str]:
    if tunnel.private_key is None:
        return {}
    if not os.access(tunnel.private_key, os.R_OK):
        raise TunnelRefused(
            f"the private key cannot be read: {tunnel.private_key}",
            where=tunnel.where,
            hint="check `private_key_path`; on a cluster the file has to be on every machine",
        )
    return {"IdentityFile": _quoted(tunnel.private_key), "IdentitiesOnly": "yes"}


def _trust(tunnel: Tunnel) -> dict[str, str]:
    if tunnel.known_hosts is None:
        return {}
    return {"UserKnownHostsFile": _quoted(tunnel.known_hosts), "GlobalKnownHostsFile": "none"}


def _quoted(path: str) -> str:
    """A path as ssh's options want it: it would split at blanks, and fill in what follows a percent sign."""
    return '"' + path.replace("%", "%%") + '"'


def _ssh() -> str:
    found = shutil.which("ssh")
    if found is None:
        hint = "install OpenSSH's client (Debian: apt install openssh-client), wherever tunnels are opened"
        raise ConfigError("a tunnel needs the program `ssh`, and it was not found", hint=hint)
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def _end(ssh: subprocess.Popen[str]) -> None:
    assert ssh.stdin is not None
    ssh.stdin.close()
    try:
        ssh.wait(timeout=5)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(ssh.pid, signal.SIGKILL)  # ssh itself, and who watches over it
        ssh.wait()


# --- What ssh says, in words -------------------------------------------------

_UNREACHABLE = (
    "Connection refused",
    "Connection timed out",
    "Operation timed out",
    "No route to host",
    "Network is unreachable",
    "Could not resolve hostname",
    "Connection closed by",
    "Connection reset by",
    "Broken pipe",
    "banner exchange",
    "kex_exchange_identification",
)
_OPEN_FAILED = re.compile(r"^channel \d+: open failed: (.*)$")


def _open_failed(line: str) -> str | None:
    found = _OPEN_FAILED.match(line)
    return found[1].removeprefix("connect failed: ") if found else None


def in_words(tunnel: Tunnel, said: list[str]) -> TidegateError:
    """Why ssh gave up."""
    text = "\n".join(said)
    if "REMOTE HOST IDENTIFICATION HAS CHANGED" in text:
        return _changed_key(tunnel)
    if "host key is known for" in text or "Host key verification failed" in text:
        return _unknown_key(tunnel)
    if "UNPROTECTED PRIVATE KEY FILE" in text:
        hint = f"chmod 600 {shlex.quote(tunnel.private_key or 'the key')}"
        return TunnelRefused(
            "others can read the private key, so ssh does not use it", where=tunnel.where, hint=hint
        )
    if "Permission denied" in text or "Too many authentication failures" in text:
        return _refused(tunnel)
    if "Address already in use" in text or "Could not request local forwarding" in text:
        hint = "set `local_port: 0` to have a free one chosen"
        return TunnelRefused(
            f"port {tunnel.local_port} of this machine is taken", where=tunnel.where, hint=hint
        )
    last = next((line for line in reversed(said) if line.strip()), "ssh ended without a word")
    if not said or any(sign in text for sign in _UNREACHABLE):
        hint = "check host and port under `ssh_tunnel`, and that no firewall is in between"
        return ConnectError(f"cannot reach the bastion: {last}", where=tunnel.where, hint=hint)
    return TunnelRefused(f"ssh: {last}", where=tunnel.where, hint="check `ssh_tunnel` of the connection")


def _refused(tunnel: Tunnel) -> TunnelRefused:
    if tunnel.private_key:
        key = f"the key {tunnel.private_key}"
        hint = "its public half belongs into authorized_keys there; one with a passphrase goes into an agent"
    else:
        key = "any key of the agent or the home folder"
        hint = "`ssh-add -l` shows what the agent holds; `private_key_path` names a key"
    user = f" of user `{tunnel.username}`" if tunnel.username else ""
    return TunnelRefused(f"the bastion refused {key}{user}", where=tunnel.where, hint=hint)


def _unknown_key(tunnel: Tunnel) -> TunnelRefused:
    return TunnelRefused(
        "the bastion's host key is not known, so it could be anybody",
        where=tunnel.where,
        hint=f"compare its fingerprint with its administrator's, then: "
        f"ssh-keyscan -p {tunnel.port or 22} {shlex.quote(tunnel.host)} >> {_known_hosts(tunnel)}",
    )


def _changed_key(tunnel: Tunnel) -> TunnelRefused:
    name = tunnel.host if (tunnel.port or 22) == 22 else f"[{tunnel.host}]:{tunnel.port}"  # noqa: PLR2004
    return TunnelRefused(
        "the bastion's host key has changed: it was set up anew, or somebody stands in between",
        where=tunnel.where,
        hint=f"ask its administrator; only then: ssh-keygen -R {shlex.quote(name)} -f {_known_hosts(tunnel)} "
        f"&& ssh-keyscan -p {tunnel.port or 22} {shlex.quote(tunnel.host)} >> {_known_hosts(tunnel)}",
    )


def _known_hosts(tunnel: Tunnel) -> str:
    return shlex.quote(tunnel.known_hosts) if tunnel.known_hosts else "~/.ssh/known_hosts"

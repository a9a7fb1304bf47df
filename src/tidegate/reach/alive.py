"""When a server that says nothing counts as gone.

A connection that is idle is forgotten by many a firewall, and one whose server lost its power never hears of
it: whoever waits there for an answer would wait for two hours and more. There is no limit for a server that
lives and does not take what is sent (`TCP_USER_TIMEOUT`): it may be waiting for a lock.
"""

from __future__ import annotations

import socket

IDLE_SECONDS = 60
PAUSE_SECONDS = 10
ATTEMPTS = 6

_OPTIONS = {"TCP_KEEPIDLE": IDLE_SECONDS, "TCP_KEEPINTVL": PAUSE_SECONDS, "TCP_KEEPCNT": ATTEMPTS}


def keep_alive(connection: socket.socket) -> None:
    """Have the system ask the other side now and then; a system that lacks an option asks at its own pace."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

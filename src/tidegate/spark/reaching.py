"""Whether anything answers at an address, asked before Spark is left to wait for it."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from tidegate.core.errors import ConnectError

_PATIENCE_SECONDS = 10.0


def demand_reachable(addresses: Sequence[str], what: str, key: str) -> None:
    """Raise `ConnectError` unless one of the addresses, each `host:port`, takes a connection."""
    problem = "no address is given"
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), _PATIENCE_SECONDS):
                return
        except (OSError, ValueError) as error:
            problem = str(error)
    raise ConnectError(
        f"{what} does not answer: {problem}",
        where=", ".join(addresses),
        hint=f"check `{key}` in config/connections.yml, and whether it is running",
    )

"""The clock and randomness of the outside world. Everywhere else they are arguments."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime


def now() -> datetime:
    return datetime.now(UTC)


def new_token() -> str:
    """Something that no other call ever returns, short enough to be read."""
    return secrets.token_hex(6)

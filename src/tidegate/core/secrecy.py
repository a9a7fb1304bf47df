"""Secrets that this process has come to know while it runs, so that whoever shows text can leave them out.

What stands in the configuration is known when it is read. Tokens that are made when a connection opens, and
what a provider hands out when it is asked, are not: they are remembered here.
"""

from __future__ import annotations

import re

HIDDEN = "•••"
_SHORTEST = 3
"""Shorter ones would be found in every other word, and protect nothing."""
_SECRET_KEY = re.compile(r"pass|secret|token|credential|(access|private|account)\W?key|\.key$", re.IGNORECASE)
_PASSWORD_IN_URL = re.compile(r"(?<=://)([^\s/:@]*):([^\s@]+)@")

_remembered: set[str] = set()


def names_a_secret(key: str) -> bool:
    """Whether what stands under this name is better not shown."""
    return _SECRET_KEY.search(key) is not None


def remember(*secrets: str | None) -> None:
    _remembered.update(secret for secret in secrets if secret and len(secret) >= _SHORTEST)


def hidden(text: str) -> str:
    """The text without any secret in it; the longest first, so that one that contains another goes whole.

    An address gives its password away by its place.
    """
    for secret in sorted(_remembered, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return _PASSWORD_IN_URL.sub(rf"\1:{HIDDEN}@", text)

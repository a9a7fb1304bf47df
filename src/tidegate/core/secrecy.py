"""Secrets that this process has come to know while it runs, so that whoever shows text can leave them out.

What stands in the configuration is known when it is read. Tokens that are made when a connection opens, and
what a provider hands out when it is asked, are not: they are remembered here.
"""

from __future__ import annotations

HIDDEN = "•••"
_SHORTEST = 3
"""Shorter ones would be found in every other word, and protect nothing."""

_remembered: set[str] = set()


def remember(*secrets: str | None) -> None:
    _remembered.update(secret for secret in secrets if secret and len(secret) >= _SHORTEST)


def hidden(text: str) -> str:
    """The text without any secret in it; the longest first, so that one that contains another goes whole."""
    for secret in sorted(_remembered, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text

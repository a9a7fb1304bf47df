"""Secrets that are kept elsewhere: `${provider:reference}` in a value.

`file` is built in: `${file:/run/secrets/password}`. Other providers are installed packages with an entry
point in the group `tidegate.secrets`: a function that takes the reference and returns the secret. Nothing is
fetched before an entry that needs it is used, and nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tidegate.config.spelling import did_you_mean, listed
from tidegate.core import secrecy

GROUP = "tidegate.secrets"
FILE = "file"

Provider = Callable[[str], str]


class NoSecret(Exception):
    """A secret cannot be had; the text says why, and what would help."""


@dataclass(frozen=True)
class Providers:
    """Those that are installed; relative paths of files begin at `root`."""

    root: Path
    _fetched: dict[tuple[str, str], str] = field(default_factory=dict, repr=False)

    def fetch(self, name: str, reference: str) -> str:
        key = (name, reference)
        if key not in self._fetched:
            self._fetched[key] = self._ask(name, reference)
            secrecy.remember(self._fetched[key])
        return self._fetched[key]

    def _ask(self, name: str, reference: str) -> str:
        if name == FILE:
            return self._read(reference)
        provider = _installed(name)
        try:
            secret: object = provider(reference)
        except LookupError as error:
            raise NoSecret(f"`{name}` has no secret `{reference}`: {_said(error)}") from None
        except Exception as error:  # a provider can fail in any way; what it says is passed on
            raise NoSecret(f"`{name}` could not be asked for `{reference}`: {_said(error)}") from error
        if not isinstance(secret, str):
            raise NoSecret(f"`{name}` answered `{reference}` with something that is not text")
        return secret

    def _read(self, reference: str) -> str:
        path = self.root / Path(reference).expanduser()
        try:
            text = path.read_bytes().decode()
        except UnicodeDecodeError:
            raise NoSecret(f"the file {path} is not UTF-8 text") from None
        except (OSError, ValueError) as error:
            raise NoSecret(f"the file {path} cannot be read: {_said(error)}") from None
        return text.removesuffix("\n").removesuffix("\r")  # most editors end a file with a line break


def _said(error: Exception) -> str:
    reason = getattr(error, "strerror", None) or str(error.args[0] if error.args else error)
    return secrecy.hidden(reason or type(error).__name__)


def _installed(name: str) -> Provider:
    from importlib.metadata import entry_points

    found = entry_points(group=GROUP)
    if name not in found.names:
        known = sorted({FILE, *found.names})
        near = did_you_mean(name, known)
        raise NoSecret(f"no provider of secrets is called `{name}`{near or f'; there are {listed(known)}'}")
    try:
        provider: Provider = found[name].load()
    except ImportError as error:
        raise NoSecret(f"the provider `{name}` cannot be loaded: {error}") from error
    return provider

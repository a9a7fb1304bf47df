"""The parts a pipeline is joined from: store, staging, source and target, opened when first needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar

from tidegate.core.errors import TidegateError
from tidegate.core.leases import Holder
from tidegate.core.secrecy import hidden
from tidegate.core.watermark import StreamId
from tidegate.sources.contract import Source
from tidegate.staging.contract import Staging
from tidegate.state.contract import Store
from tidegate.state.hold import TTL, HeldStream, hold
from tidegate.targets.contract import Target

_Part = TypeVar("_Part", Source, Target)


@dataclass
class Parts:
    """Sources and targets belong to the thread that asked for them; store and staging are shared."""

    store: Store
    staging: Staging
    open_source: Callable[[], Source]
    open_target: Callable[[], Target]
    holder: Holder
    lease: timedelta = TTL
    """How long a stream stays ours without a sign of life."""
    hidden: Callable[[str], str] = hidden
    """A text without the secrets of any part, for what is kept."""
    _here: threading.local = field(default_factory=threading.local)
    _opened: list[Source | Target] = field(default_factory=list)

    def source(self) -> Source:
        if not hasattr(self._here, "source"):
            self._here.source = self._remembered(self.open_source())
        source: Source = self._here.source
        return source

    def target(self) -> Target:
        if not hasattr(self._here, "target"):
            self._here.target = self._remembered(self.open_target())
        target: Target = self._here.target
        return target

    def hold(
        self, stream: StreamId, clock: Callable[[], datetime], token: Callable[[], str]
    ) -> AbstractContextManager[HeldStream]:
        return hold(self.store, stream, holder=self.holder, clock=clock, nonce=token(), ttl=self.lease)

    def disconnect(self) -> None:
        """Drop this thread's connections; the next one to ask gets fresh ones."""
        for name in ("source", "target"):
            part = getattr(self._here, name, None)
            if part is not None:
                delattr(self._here, name)
                _close(part)

    def close(self) -> None:
        """Close what any thread has opened, and the store."""
        self.disconnect()
        while self._opened:
            _close(self._opened.pop())
        self.store.close()

    def _remembered(self, part: _Part) -> _Part:
        self._opened.append(part)
        return part


def _close(part: Source | Target) -> None:
    """Closing twice does nothing, and a broken connection may fail to close: nothing is lost with it."""
    with suppress(TidegateError):
        part.close()

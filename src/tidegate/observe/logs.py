"""Logs: off unless asked for, as lines or as JSON, and never with a secret in them."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.core import secrecy
from tidegate.core.errors import UsageError
from tidegate.core.secrecy import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tidegate.core.receipts import Receipt
    from tidegate.core.watermark import StreamId
    from tidegate.observe.terminal import Outcome

_SHORTEST_SECRET = 3
"""Shorter ones would be found in every other word, and protect nothing."""


class Secrets:
    """What must not be shown. Known once the configuration has been read."""

    def __init__(self) -> None:
        self._values: list[str] = []

    def add(self, values: Iterable[str]) -> None:
        known = {*self._values, *(value for value in values if len(value) >= _SHORTEST_SECRET)}
        # The longest first, so that one secret that contains another goes as a whole.
        self._values = sorted(known, key=len, reverse=True)

    def hidden(self, text: str) -> str:
        """The text without any secret in it."""
        for value in self._values:
            text = text.replace(value, HIDDEN)
        return secrecy.hidden(text)


class _LineFormatter(logging.Formatter):
    def __init__(self, secrets: Secrets) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
        self._secrets = secrets

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802
        return _moment(record)

    def format(self, record: logging.LogRecord) -> str:
        return self._secrets.hidden(super().format(record))


class _JsonFormatter(logging.Formatter):
    def __init__(self, secrets: Secrets) -> None:
        super().__init__()
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        data: dict[str, Any] = {
            "at": _moment(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._secrets.hidden(record.getMessage()),
            **self._shown(getattr(record, "facts", {})),
        }
        if record.exc_info:
            data["trace"] = self._secrets.hidden(self.formatException(record.exc_info))
        return json.dumps(data, default=str, ensure_ascii=False)

    def _shown(self, facts: dict[str, Any]) -> dict[str, Any]:
        hidden = self._secrets.hidden
        return {name: hidden(fact) if isinstance(fact, str) else fact for name, fact in facts.items()}


def _moment(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def configure(*, debug: bool, file: Path | None, as_json: bool, secrets: Secrets) -> list[logging.Handler]:
    """Set up logging for this process; returns the handlers, so that they can be taken away again."""
    handlers: list[logging.Handler] = [logging.NullHandler()]
    if file is not None:
        handlers.append(_file_handler(file))
    if debug or (as_json and file is None):
        handlers.append(logging.StreamHandler(sys.stderr))
    ours = logging.getLogger("tidegate")
    ours.setLevel(logging.DEBUG if debug else logging.INFO)
    formatter = _JsonFormatter(secrets) if as_json else _LineFormatter(secrets)
    for handler in handlers:
        handler.setFormatter(formatter)
        logging.getLogger().addHandler(handler)
    # What libraries warn of belongs into the log, not between a person and the result.
    logging.captureWarnings(capture=True)
    return handlers


def remove(handlers: list[logging.Handler]) -> None:
    logging.captureWarnings(capture=False)
    for handler in handlers:
        logging.getLogger().removeHandler(handler)
        handler.close()


def _file_handler(file: Path) -> logging.Handler:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        return logging.FileHandler(file, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the log file cannot be written: {error.strerror}", where=str(file)) from error


class LoggedProgress:
    """Writes what a sync tells into the log, and passes it on."""

    def __init__(self) -> None:
        self._log = logging.getLogger("tidegate.sync")

    def started(self, stream: StreamId) -> None:
        self._say(stream, "started")

    def planned(self, stream: StreamId, chunks: int, batch_size: int) -> None:
        self._say(stream, "planned", chunks=chunks, batch_size=batch_size)

    def staged(self, stream: StreamId, receipt: Receipt) -> None:
        key = receipt.segment.key if receipt.segment else None
        self._say(stream, "staged", chunk=receipt.chunk, rows=receipt.rows, key=key)

    def loaded(self, stream: StreamId, rows: int) -> None:
        self._say(stream, "loaded", rows=rows)

    def note(self, stream: StreamId, text: str) -> None:
        self._say(stream, "note", text=text)

    def remark(self, text: str) -> None:
        self._log.info("%s", text)

    def finished(self, stream: StreamId, result: Outcome) -> None:
        facts = {
            "status": str(result.status),
            "rows_extracted": result.rows_extracted,
            "rows_loaded": result.rows_loaded,
            "seconds": round(result.duration_seconds, 3),
        }
        if result.error is not None:
            self._log.error("%s failed: %s", stream, result.error, extra={"facts": _facts(stream, facts)})
            self._log.debug("trace of the failure of %s", stream, exc_info=result.error)
        else:
            self._say(stream, "finished", **facts)

    def _say(self, stream: StreamId, event: str, **facts: Any) -> None:
        told = " ".join(f"{key}={value}" for key, value in facts.items() if value is not None)
        extra = {"facts": {"event": event, **_facts(stream, facts)}}
        self._log.info("%s %s %s", stream, event, told, extra=extra)


def _facts(stream: StreamId, facts: dict[str, Any]) -> dict[str, Any]:
    return {"pipeline": stream.pipeline, "table": stream.name, **facts}

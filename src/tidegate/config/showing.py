"""Configuration as it can be shown to anybody: plain values, and `***` for what is secret."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pydantic import BaseModel, SecretStr

from tidegate.config.connection_models import SparkOptions, SqlState
from tidegate.core.secrecy import names_a_secret

HIDDEN = "***"
# A password may hold unescaped signs, so everything up to the last `@` counts as one.
_PASSWORD = re.compile(r"(?<=://)(?P<user>[^:@/]*):(?P<password>.*)@", re.DOTALL)
_PARAMETER = re.compile(
    r"(?P<key>[?&;][^=&;]*(?:pass|secret|token|key|sig)[^=&;]*=)(?P<value>[^&;]*)", re.IGNORECASE
)


def shown(value: Any) -> Any:
    """Any part of the configuration as JSON could hold it. What was never said is left out."""
    match value:
        case SecretStr():
            return HIDDEN
        case SqlState():
            url = without_secrets(value.url.get_secret_value())
            return _filled({**dict(value), "type": value.type, "url": url})
        case SparkOptions():
            return _filled({"master": value.master, "remote": value.remote, "conf": _conf(value.conf)})
        case BaseModel():
            return _filled({_key(value, name): part for name, part in value})
        case Mapping():
            return {str(key): shown(part) for key, part in value.items()}
        case _ if is_dataclass(value):
            return _filled({part.name: getattr(value, part.name) for part in fields(value)})
        case tuple() | list():
            return [shown(part) for part in value]
        case _:
            return _plain(value)


def without_secrets(text: str) -> str:
    """An address without the password that may stand in it; other text as it is."""
    if "://" not in text:
        return text
    named = _PASSWORD.sub(lambda found: f"{found['user']}:{HIDDEN}@", text)
    return _PARAMETER.sub(lambda found: f"{found['key']}{HIDDEN}", named)


def secrets_in(model: BaseModel) -> Iterator[str]:
    """The secrets of a model, and of the models in it, as plain text."""
    if isinstance(model, SparkOptions):
        yield from (text for key, text in model.conf.items() if text and names_a_secret(key))
        yield from _passwords(model.remote or "")
    if isinstance(model, SqlState):
        yield from _passwords(model.url.get_secret_value())
        return
    for _, value in model:
        if isinstance(value, SecretStr) and value.get_secret_value():
            yield value.get_secret_value()
        elif isinstance(value, BaseModel):
            yield from secrets_in(value)


def _passwords(url: str) -> Iterator[str]:
    """The passwords in an address, as they are written there and as they are meant."""
    written = [found["password"] for found in _PASSWORD.finditer(url)]
    written += [found["value"] for found in _PARAMETER.finditer(url)]
    yield from {text for part in written for text in (part, unquote(part)) if text}


def _plain(value: Any) -> Any:
    match value:
        case Enum():
            return value.value
        case timedelta():
            return value.total_seconds()
        case datetime() | Path():
            return str(value)
        case str():
            return without_secrets(value)
        case _:
            return value


def _conf(conf: Mapping[str, str]) -> dict[str, str]:
    return {key: HIDDEN if names_a_secret(key) else without_secrets(text) for key, text in conf.items()}


def _key(model: BaseModel, name: str) -> str:
    info = type(model).model_fields.get(name)
    return (info.alias if info else None) or name


def _filled(parts: Mapping[str, Any]) -> dict[str, Any]:
    plain = {name: shown(parts[name]) for name in sorted(parts, key=lambda name: name != "type")}
    return {name: part for name, part in plain.items() if part not in (None, "", [], {})}

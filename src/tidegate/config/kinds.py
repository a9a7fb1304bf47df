"""The kinds of value that config files are made of, and the root of the models that read them.

Scalars arrive as text and are read as the type that is wanted; a key without a value counts as left out.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, unquote

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    model_validator,
)

from tidegate.config.spelling import did_you_mean


class Model(BaseModel):
    """The root of all: unknown keys are errors, and nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _empty_is_left_out(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {key: value for key, value in data.items() if value is not None}
        return data


_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST = timedelta(days=3650)
_SHORTEST_LEASE, _LONGEST_LEASE = timedelta(seconds=2), timedelta(hours=1)


def _duration(value: Any) -> timedelta:
    """Seconds, or a number with its unit: `5`, `0.5`, `500ms`, `5s`, `2m`, `1h`, `1d`."""
    if isinstance(value, timedelta):
        return value
    text = str(value).strip().lower()
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = text[len(number) :] or "s"
    try:
        seconds = float(number) * _UNITS[unit]
        found = timedelta(seconds=seconds)
    except (KeyError, ValueError, OverflowError):
        raise ValueError("expected seconds, or a number with ms, s, m, h or d such as 5s or 2m") from None
    if not timedelta(0) <= found <= _LONGEST:
        raise ValueError("expected a duration between 0 and ten years")
    return found


def _lease_time(value: timedelta) -> timedelta:
    if not _SHORTEST_LEASE <= value <= _LONGEST_LEASE:
        raise ValueError("expected a duration between 2 seconds and an hour")
    return value


def _moment(value: Any) -> datetime:
    """Not left to pydantic, which takes `2025` for seconds since 1970."""
    if isinstance(value, datetime):
        return value
    try:
        return datetime.fromisoformat(str(value).strip())
    except ValueError:
        raise ValueError("expected a date and time such as 2025-01-01 00:00:00") from None


def _zone(name: str) -> str:
    from zoneinfo import ZoneInfo, available_timezones

    if name == "UTC":
        return name
    try:
        return ZoneInfo(name).key
    except (ValueError, OSError, LookupError):  # a name can also lead to a folder, or outside of them all
        near = did_you_mean(name, available_timezones())
        raise ValueError(f"expected a time zone such as Europe/Berlin or UTC{near}") from None


def _from_root(path: Path, info: ValidationInfo) -> Path:
    """Relative paths begin at the folder that holds `config/`."""
    if "\0" in str(path):
        raise ValueError("a path cannot contain the character U+0000")
    try:
        expanded = path.expanduser()
    except RuntimeError:
        raise ValueError("the home folder that `~` stands for is not known") from None
    root = info.context.get("root") if isinstance(info.context, dict) else None
    return Path(root) / expanded if root else expanded


def _on_disk(path: Path) -> Path:
    if path.name == ":memory:":
        raise ValueError("a database in memory is gone when the run ends; name a file")
    return path


def _place(value: str, info: ValidationInfo) -> str:
    """A folder, or an address such as s3://bucket/prefix."""
    return value if "://" in value else str(_from_root(Path(value), info))


def _database_url(url: SecretStr, info: ValidationInfo) -> SecretStr:
    """The address of a database; SQLite's may be a relative path: `sqlite://state.db`."""
    scheme, colon, rest = url.get_secret_value().partition(":")
    if not colon or scheme not in ("sqlite", "postgresql", "mysql"):
        raise ValueError("expected an address that begins with sqlite://, postgresql:// or mysql://")
    place = rest.removeprefix("//")
    if scheme != "sqlite" or place.startswith("/"):
        return url
    return SecretStr(f"sqlite://{quote(str(_from_root(Path(unquote(place)), info)))}")


def _some_time(value: timedelta) -> timedelta:
    if value <= timedelta(0):
        raise ValueError("expected more than no time at all")
    return value


def _one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _once_each(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError("the same name stands in the list twice")
    return names


def _key_prefix(value: str) -> str:
    if ".." in value.replace("\\", "/").split("/"):
        raise ValueError("a prefix cannot contain `..`")
    return value


def _name(value: str) -> str:
    if value != value.strip() or any(not c.isprintable() or c in "/\\" for c in value):
        raise ValueError("a name has no `/`, no `\\`, no line breaks and no blanks at its ends")
    return value


Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_name)]
Names = Annotated[tuple[Text, ...], BeforeValidator(_one_or_many), AfterValidator(_once_each)]
Values = Annotated[tuple[str, ...], BeforeValidator(_one_or_many)]
Port = Annotated[int, Field(ge=1, le=65535)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Percentage = Annotated[float, Field(ge=0, le=100)]
Duration = Annotated[timedelta, BeforeValidator(_duration)]
SomeTime = Annotated[Duration, AfterValidator(_some_time)]
LeaseTime = Annotated[Duration, AfterValidator(_lease_time)]
Moment = Annotated[datetime, BeforeValidator(_moment)]
Zone = Annotated[str, AfterValidator(_zone)]
ProjectPath = Annotated[Path, AfterValidator(_from_root)]
FilePath = Annotated[Path, AfterValidator(_on_disk), AfterValidator(_from_root)]
DatabaseUrl = Annotated[SecretStr, AfterValidator(_database_url)]
Place = Annotated[Text, AfterValidator(_place)]
Prefix = Annotated[str, AfterValidator(_key_prefix)]

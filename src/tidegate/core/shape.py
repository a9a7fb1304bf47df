"""Whether a value read from outside has the shape its data class declares.

Records come back from files and databases that people can edit and disks can damage. A number that is a
text, or negative, would otherwise travel far before anything notices.
"""

from __future__ import annotations

from dataclasses import is_dataclass
from datetime import datetime
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from tidegate.core.positions import Position


def demand_shape(value: object, kind: Any, path: str = "") -> None:
    """Raise `ValueError`, naming the field, unless `value` is what `kind` says.

    Whole numbers in a record count something, so none is negative; moments carry their zone. What a
    position may hold, the position checks by itself.
    """
    if kind is Any or (kind is Position and isinstance(value, Position)):
        return
    origin = get_origin(kind)
    if origin is UnionType:
        if value is not None:
            demand_shape(value, _without_none(kind), path)
        elif NoneType not in get_args(kind):
            raise _misshapen(path, value, kind)
    elif origin is tuple:
        _demand_items(value, get_args(kind), path)
    elif not isinstance(value, origin or kind) or (isinstance(value, bool) and kind is not bool):
        raise _misshapen(path, value, kind)
    elif is_dataclass(kind):
        _demand_fields(value, kind, path)
    else:
        _demand_sense(value, path)


def _demand_fields(value: object, kind: Any, path: str) -> None:
    for name, declared in _fields(kind).items():
        demand_shape(getattr(value, name), declared, f"{path}.{name}" if path else name)


def _demand_items(value: object, kinds: tuple[Any, ...], path: str) -> None:
    if not isinstance(value, tuple):
        raise _misshapen(path, value, tuple)
    each = (kinds[0],) * len(value) if kinds[-1] is Ellipsis else kinds
    if len(each) != len(value):
        raise _misshapen(path, value, kinds)
    for number, (item, kind) in enumerate(zip(value, each, strict=True)):
        demand_shape(item, kind, f"{path}[{number}]")


def _demand_sense(value: object, path: str) -> None:
    if isinstance(value, int) and value < 0:
        raise ValueError(f"{path} is negative: {value}")
    if isinstance(value, datetime) and value.tzinfo is None:
        raise ValueError(f"{path} has no time zone: {value.isoformat()}")


def _without_none(kind: Any) -> Any:
    [rest] = [part for part in get_args(kind) if part is not NoneType]
    return rest


@cache
def _fields(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _misshapen(path: str, value: object, kind: Any) -> ValueError:
    return ValueError(f"{path} is {type(value).__name__}, not {getattr(kind, '__name__', kind)}")

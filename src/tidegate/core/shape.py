"""Whether a value read from outside has the shape its data class declares.

Records come back from files and databases that people can edit and disks can damage. A number that is a
text, or negative, would otherwise travel far before anything notices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass
from datetime import datetime
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from tidegate.core.positions import Position

Check = Callable[[Any], None]


class _Misshapen(Exception):
    """What is wrong, and on the way up, where."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = ""


def demand_shape(value: object, kind: Any, path: str = "") -> None:
    """Raise `ValueError`, naming the field, unless `value` is what `kind` says.

    Whole numbers in a record count something, so none is negative; moments carry their zone. What a
    position may hold, the position checks by itself.
    """
    try:
        _check(kind)(value)
    except _Misshapen as error:
        raise ValueError(f"{path}{error.path} {error.problem}".lstrip(". ")) from None


@cache
def _check(kind: Any) -> Check:
    origin = get_origin(kind)
    if kind is Any:
        return _anything
    if origin is UnionType:
        return _optional(kind)
    if origin is tuple:
        return _tuple(get_args(kind))
    if kind is Position or not is_dataclass(kind):
        return _plain(origin or kind)
    return _data_class(kind)


def _optional(kind: Any) -> Check:
    [present] = [_check(part) for part in get_args(kind) if part is not NoneType]

    def check(value: Any) -> None:
        if value is not None:
            present(value)

    return check


def _tuple(kinds: tuple[Any, ...]) -> Check:
    many = _check(kinds[0]) if kinds[-1] is Ellipsis else None
    each = [_check(kind) for kind in kinds if kind is not Ellipsis]

    def check(value: Any) -> None:
        if not isinstance(value, tuple) or (many is None and len(value) != len(each)):
            raise _Misshapen(f"is {type(value).__name__}, not a list")
        for place, item in enumerate(value):
            try:
                (many or each[place])(item)
            except _Misshapen as error:
                error.path = f"[{place}]{error.path}"
                raise

    return check


def _data_class(kind: Any) -> Check:
    fields = [(name, _check(declared)) for name, declared in get_type_hints(kind).items()]
    itself = _plain(kind)

    def check(value: Any) -> None:
        itself(value)
        for name, field in fields:
            try:
                field(getattr(value, name))
            except _Misshapen as error:
                error.path = f".{name}{error.path}"
                raise

    return check


def _anything(_: Any) -> None:
    """Every value will do."""


def _plain(kind: type[Any]) -> Check:
    def check(value: Any) -> None:
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise _Misshapen(f"is {type(value).__name__}, not {kind.__name__}")
        if kind is int and value < 0:
            raise _Misshapen(f"is negative: {value}")
        if kind is datetime and value.tzinfo is None:
            raise _Misshapen(f"has no time zone: {value.isoformat()}")

    return check

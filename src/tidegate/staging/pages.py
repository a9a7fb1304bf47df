"""Long listings, a page at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")

PAGE = 1000
"""What S3 lists, or deletes, by one request."""


def pages(items: Iterable[Item]) -> Iterator[list[Item]]:
    rest = iter(items)
    while page := list(islice(rest, PAGE)):
        yield page

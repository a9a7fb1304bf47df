"""What a table would change silently is refused before it is written."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.delta.fitting import fits, unfitting

STRUCT = {"type": "struct", "fields": [{"name": "a", "type": "long", "nullable": True, "metadata": {}}]}
STRICT = {
    "type": "struct",
    "fields": [{"name": "a", "type": "long", "nullable": False, "metadata": {"n": 1}}],
}
OTHER = {"type": "struct", "fields": [{"name": "a", "type": "double", "nullable": True, "metadata": {}}]}


@pytest.mark.parametrize(
    ("kind", "there"),
    [
        ("long", "long"),
        ("integer", "long"),
        ("long", "integer"),  # too large a number is an error
        ("long", "decimal(20,0)"),
        ("integer", "double"),
        ("float", "double"),
        ("decimal(10,2)", "decimal(8,4)"),
        ("timestamp", "string"),
        ("date", "timestamp"),
        ("void", "binary"),
        (STRICT, STRUCT),
    ],
)
def test_a_value_is_kept_or_refused(kind: Any, there: Any) -> None:
    assert fits(kind, there)


@pytest.mark.parametrize(
    ("kind", "there"),
    [
        ("double", "long"),
        ("long", "double"),
        ("double", "float"),
        ("decimal(10,4)", "decimal(10,2)"),
        ("double", "decimal(10,2)"),
        ("timestamp", "date"),
        ("timestamp", "timestamp_ntz"),
        ("string", "long"),
        (STRUCT, OTHER),
        (STRUCT, "string"),
    ],
)
def test_a_value_would_be_changed(kind: Any, there: Any) -> None:
    assert not fits(kind, there)


def test_columns_are_named_with_both_types() -> None:
    rows = {"fields": [{"name": "Price", "type": "double"}, {"name": "id", "type": "long"}]}
    table = {"fields": [{"name": "price", "type": "long"}]}
    assert list(unfitting(rows, table)) == ['`Price` is "double", and "long" there']

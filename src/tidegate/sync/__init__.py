"""Table sync: database tables, through Parquet files in staging, into a warehouse.

The package can be called: `tidegate.sync(project=".", pipeline="shop")` is `tidegate.sync.library.sync`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.sync.result import SyncResult


class _CallablePackage(ModuleType):
    """Importing any module in here makes `tidegate.sync` this package; it must stay what users call."""

    def __call__(self, *args: Any, **kwargs: Any) -> SyncResult:
        from tidegate.sync.library import sync

        return sync(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage

"""Tidegate moves data past a watermark, exactly once, on Spark.

    import tidegate

    result = tidegate.sync(project=".", pipeline="shop")
    store = tidegate.open_store("file:///path/to/state")
    tracker = tidegate.WatermarkTracker(store)
    plan = tidegate.DeltaPlans("gold").prepare()
    archived = tidegate.Archive("watermark-config.yaml").run_cycle()

Everything that is public has its name in `__all__`, and is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.archive.library import Archive
    from tidegate.delta.library import DeltaPlans
    from tidegate.state.opening import open_store
    from tidegate.sync.library import sync
    from tidegate.sync.result import SyncResult
    from tidegate.tracker import WatermarkTracker

    __version__: str

__all__ = ["Archive", "DeltaPlans", "SyncResult", "WatermarkTracker", "__version__", "open_store", "sync"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    match name:
        case "sync":
            # The package itself: it can be called, so that its name means one thing, imported or not.
            return import_module("tidegate.sync")
        case "Archive":
            return import_module("tidegate.archive.library").Archive
        case "DeltaPlans":
            return import_module("tidegate.delta.library").DeltaPlans
        case "SyncResult":
            return import_module("tidegate.sync.result").SyncResult
        case "WatermarkTracker":
            return import_module("tidegate.tracker").WatermarkTracker
        case "open_store":
            return import_module("tidegate.state.opening").open_store
        case "__version__":
            from importlib.metadata import version

            return version("tidegate")
        case _:
            raise AttributeError(f"module 'tidegate' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

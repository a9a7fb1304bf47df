"""The process that Spark forks its Python workers from, with everything imported that tasks need.

Otherwise each worker would import it by itself: half a second of work for every core, before the first row.
What is imported is exempt from Python's search for garbage, which a worker would otherwise make through all
of it while it reads, and once more after each of its tasks.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from importlib import import_module

import pyspark.worker  # noqa: F401 - for the workers to have it
from pyspark.daemon import manager

import tidegate.spark.extraction  # noqa: F401 - for the workers to have it

_READING = ("connectorx", "tidegate.sources.readers.mysql", "tidegate.sources.readers.postgresql")
"""Imported if what they need is installed. DuckDB is not: it starts a thread, which a fork would lose."""


def _import_readers() -> None:
    for name in _READING:
        with suppress(ImportError):  # whoever needs it says that it is missing
            import_module(name)


if __name__ == "__main__":
    _import_readers()
    gc.freeze()
    manager()

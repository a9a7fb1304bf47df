"""The process that Spark forks its Python workers from, with everything imported that tasks need.

Otherwise each worker would import it by itself: half a second of work for every core, before the first row.
"""

from __future__ import annotations

from pyspark.daemon import manager

import tidegate.spark.extraction  # noqa: F401 - for the workers to have it

if __name__ == "__main__":
    manager()

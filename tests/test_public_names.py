"""What users may rely on. A name that is added or removed here is a promise made or broken."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import tidegate


def test_the_public_names_are_these() -> None:
    assert sorted(tidegate.__all__) == [
        "Archive",
        "DeltaPlans",
        "SyncResult",
        "WatermarkTracker",
        "__version__",
        "open_store",
        "sync",
    ]


def test_every_public_name_can_be_had() -> None:
    assert callable(tidegate.sync)
    assert callable(tidegate.open_store)
    assert isinstance(tidegate.DeltaPlans, type)
    assert isinstance(tidegate.SyncResult, type)
    assert isinstance(tidegate.WatermarkTracker, type)
    assert tidegate.__version__ == version("tidegate")


def test_sync_can_be_called_whether_or_not_its_modules_were_imported() -> None:
    code = (
        "import tidegate\n"
        "before = tidegate.sync\n"
        "import tidegate.sync.result\n"
        "assert tidegate.sync is before and callable(before)\n"
        "assert tidegate.sync.result.SyncResult is tidegate.SyncResult\n"
        "from tidegate import sync\n"
        "assert sync is before\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_tidegate_imports_nothing_else() -> None:
    code = "import sys, tidegate; print([n for n in sys.modules if n.startswith('tidegate.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

"""Materializes the assets of a file of definitions, and prints what became of each.

For the Python of tests/orchestrators.py: `python dagster_runs.py FILE`
"""

import importlib.util
import json
import sys

from dagster import DagsterInstance, materialize


def main(file: str) -> None:
    spec = importlib.util.spec_from_file_location("definitions_of_a_test", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.defs.get_job_def("sync_shop")
    done = materialize([module.shop], instance=DagsterInstance.ephemeral(), raise_on_error=False)
    found = {
        event.asset_key.to_user_string(): {
            name: entry.value for name, entry in event.materialization.metadata.items()
        }
        for event in done.get_asset_materialization_events()
    }
    print(json.dumps({"success": done.success, "run_id": done.run_id, "assets": found}))


if __name__ == "__main__":
    main(sys.argv[1])

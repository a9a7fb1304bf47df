"""Runs DAGs of Airflow's folder, as Airflow tests them, and prints how their tasks ended and what they say.

For the Python of tests/orchestrators.py: `python airflow_runs.py FILE…`
"""

import importlib.util
import json
import sys
from datetime import UTC, datetime
from typing import Any


def main(files: list[str]) -> None:
    """Each once, and the second one twice: a run of the same name, as if its task had been cleared."""
    ended: dict[str, dict[str, Any]] = {}
    for number, file in enumerate(files):
        dag = _loaded(file).dag
        ended[dag.dag_id] = _ended(dag, number)
        if number == 1:
            ended[dag.dag_id]["cleared"] = _ended(dag, number)
    print(json.dumps(ended))


def _ended(dag: Any, number: int) -> dict[str, Any]:
    when = datetime(2025, 1, 1, number, tzinfo=UTC)
    run = dag.test(logical_date=when, run_after=when)  # which names the run
    [task] = run.get_task_instances()
    result = task.xcom_pull(task_ids=task.task_id)
    return {"state": str(task.state), "run_id": run.run_id, "result": result}


def _loaded(file: str) -> Any:
    spec = importlib.util.spec_from_file_location("dag_of_a_test", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(sys.argv[1:])

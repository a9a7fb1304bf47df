"""Tidegate in Airflow: an operator that syncs a pipeline.

    from tidegate.integrations.airflow import TidegateSyncOperator

    TidegateSyncOperator(task_id="sync_shop", project="/srv/shop", pipeline="shop", deferrable=True)

The sync runs in a process of its own, in any environment: `program` says how to call Tidegate there. What
`tidegate sync --json-output` says is the task's XCom. A task that is tried again finds the sync that its
earlier attempt has left running, or its result if that has ended well: all attempts have one `execution_id`.
One that has succeeded and is cleared syncs again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from airflow.configuration import conf
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from tidegate.integrations.executions import WRONGLY_CONFIGURED, Execution, Sync, start

__all__ = ["SyncTrigger", "TidegateSyncOperator"]


class TidegateSyncOperator(BaseOperator):
    """Sync a pipeline; with `deferrable`, wait for it without a worker.

    `executions` is where executions are kept, by default in the project's `.tidegate`. To wait without a
    worker, the triggerer has to see that folder too.
    """

    template_fields: Sequence[str] = ("project", "pipeline", "tables", "options", "executions")

    def __init__(
        self,
        *,
        project: str,
        pipeline: str,
        tables: Sequence[str] = (),
        options: Sequence[str] = (),
        program: Sequence[str] = ("tidegate",),
        executions: str | None = None,
        deferrable: bool | None = None,
        poll_seconds: float = 5.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.project = project
        self.pipeline = pipeline
        self.tables = list(tables)
        self.options = list(options)
        self.program = list(program)
        self.executions = executions
        default = conf.getboolean("operators", "default_deferrable", fallback=False)
        self.deferrable = default if deferrable is None else deferrable
        self.poll_seconds = poll_seconds
        self._execution: Execution | None = None

    def execute(self, context: Any) -> Any:
        sync = Sync(
            str(self.project), self.pipeline, tuple(self.tables), tuple(self.options), tuple(self.program)
        )
        folder = self.executions or str(Path(self.project) / ".tidegate" / "executions")
        execution = self._execution = start(sync, execution_id(context), folder)
        if self.deferrable and execution.outcome() is None:
            trigger = SyncTrigger(str(execution.folder), self.poll_seconds)
            self.defer(trigger=trigger, method_name="execute_complete", timeout=self.execution_timeout)
        return self._finished(execution, min(self.poll_seconds, 1.0))

    def execute_complete(self, context: Any, event: dict[str, Any]) -> Any:  # noqa: ARG002 - as Airflow calls it
        return self._finished(Execution(Path(event["folder"])), self.poll_seconds)

    def on_kill(self) -> None:
        if self._execution is not None:
            self._execution.stop()

    def _finished(self, execution: Execution, poll_seconds: float) -> Any:
        outcome = execution.wait(poll_seconds)
        for line in outcome.log.splitlines():
            self.log.info(line)
        if outcome.exit_code == 0:
            execution.tell()
            return outcome.result
        if outcome.exit_code == WRONGLY_CONFIGURED:
            raise AirflowFailException(outcome.words)
        raise AirflowException(outcome.words)


class SyncTrigger(BaseTrigger):
    """Waits until an execution has ended, or shows no sign of life."""

    def __init__(self, folder: str, poll_seconds: float = 5.0) -> None:
        super().__init__()
        self.folder = folder
        self.poll_seconds = poll_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        values = {"folder": self.folder, "poll_seconds": self.poll_seconds}
        return f"{SyncTrigger.__module__}.{SyncTrigger.__qualname__}", values

    async def run(self) -> AsyncIterator[TriggerEvent]:
        execution = Execution(Path(self.folder))
        while await asyncio.to_thread(lambda: execution.alive):
            await asyncio.sleep(self.poll_seconds)
        yield TriggerEvent({"folder": self.folder})


def execution_id(context: Any) -> str:
    """The same for every attempt of a task in a run of its DAG."""
    task = context["ti"]
    mapped = "" if task.map_index in (None, -1) else f".{task.map_index}"
    return f"airflow.{task.dag_id}.{task.task_id}.{task.run_id}{mapped}"

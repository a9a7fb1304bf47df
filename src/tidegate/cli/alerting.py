"""Alerts of what a command did: told while the next pipeline is at work already, waited for at the end."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from tidegate.core.errors import TidegateError, UsageError

if TYPE_CHECKING:
    from types import TracebackType

    from tidegate.cli.invocation import Invocation
    from tidegate.config.deltas import DeltaPipeline
    from tidegate.config.pipelines import Pipeline
    from tidegate.observe.alerts import Alerts, Look
    from tidegate.state.contract import Store
    from tidegate.sync.alerting import Done

_AT_ONCE = 16


class Telling:
    """Nothing here can fail or delay what is told of: a receiver that is not there is a warning."""

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._pool = ThreadPoolExecutor(_AT_ONCE, "alerts")
        self._told: list[Future[list[str]]] = []

    def __enter__(self) -> Telling:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for told in self._told:
            defect = told.exception()
            for warning in [f"alerts failed: {defect!r}"] if defect else told.result():
                self._invocation.terminal.warn(warning)
        self._pool.shutdown()

    def synced(self, pipeline: Pipeline, done: Done, store: Store) -> None:
        from tidegate.state.clock import now
        from tidegate.sync.alerting import look_after

        alerts = self._alerts(pipeline)
        if alerts is not None:
            self._tell(alerts, look_after(done, alerts, store, now()))

    def not_started(self, pipeline: Pipeline, error: TidegateError) -> None:
        """What a person has typed wrongly is told to that person alone."""
        from tidegate.sync.alerting import not_started

        alerts = None if isinstance(error, UsageError) else self._alerts(pipeline)
        if alerts is not None:
            self._tell(alerts, not_started(pipeline.name, error))

    def looked(self, pipeline: DeltaPipeline, look: Look) -> None:
        alerts = self._alerts(pipeline)
        if alerts is not None:
            self._tell(alerts, look)

    def job_ended(self, pipeline: Pipeline, error: TidegateError | None) -> None:
        from tidegate.sync.alerting import job_ended

        alerts = None if isinstance(error, UsageError) else self._alerts(pipeline)
        if alerts is not None:
            self._tell(alerts, job_ended(pipeline.name, error))

    def _tell(self, alerts: Alerts, look: Look) -> None:
        self._told.append(self._pool.submit(alerts.tell, look))

    def _alerts(self, pipeline: Pipeline | DeltaPipeline) -> Alerts | None:
        """None where nobody is to be told: then nothing of all this is loaded."""
        if not pipeline.alert_names:
            return None
        from tidegate.observe.alerts import alerts_of
        from tidegate.state.clock import now

        return alerts_of(pipeline, hidden=self._invocation.secrets.hidden, clock=now)

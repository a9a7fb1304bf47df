"""From a project to a running sync: what joins configuration, stores, staging, sources and targets."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from tidegate.config.connection_models import SourceConnection, StagingArea, TargetConnection
from tidegate.config.connections import Connections
from tidegate.config.kinds import Model
from tidegate.config.pipelines import Pipeline
from tidegate.config.project import Project
from tidegate.config.showing import secrets_in
from tidegate.core.errors import TidegateError, UsageError
from tidegate.observe.alerts import Alerts, alerts_of
from tidegate.observe.logs import Secrets
from tidegate.sources.contract import Source
from tidegate.sources.discovery import SchemaCache
from tidegate.spark.session import LazySession, SparkSettings
from tidegate.staging.contract import Staging
from tidegate.staging.layout import safe_name
from tidegate.staging.local import LocalStaging
from tidegate.state.clock import new_token, now
from tidegate.state.opening import open_store
from tidegate.state.process import this_process
from tidegate.sync.alerting import Done, look_after, not_started
from tidegate.sync.parts import Parts
from tidegate.sync.pipeline import Request, sync_pipeline
from tidegate.sync.progress import Progress, Silence
from tidegate.sync.result import SyncResult
from tidegate.targets.contract import Target


def sync(
    project: str | Path = ".",
    pipeline: str | None = None,
    tables: Sequence[str] = (),
    *,
    progress: Progress | None = None,
) -> SyncResult:
    """Sync the tables of a pipeline, all of them unless some are named.

    A table that fails does not keep the others from finishing: `result.exit_code` and the results of the
    tables tell. What keeps all of them from starting is raised as a `TidegateError`.
    """
    loaded = Project.load(Path(project))
    chosen = loaded.pipeline(pipeline or _only_pipeline(loaded))
    wanted = (tables,) if isinstance(tables, str) else tuple(tables)
    alerts = project_alerts(loaded, chosen)
    try:
        return _sync(chosen, Request(tables=wanted), open_session(loaded), progress or Silence(), alerts)
    except TidegateError as error:
        if not isinstance(error, UsageError):
            _log_warnings(alerts.tell(not_started(chosen.name, error)))
        raise


def _sync(
    pipeline: Pipeline, request: Request, session: LazySession, progress: Progress, alerts: Alerts
) -> SyncResult:
    parts = open_parts(pipeline, command="tidegate.sync", known=known_schemas(pipeline))
    try:
        result = sync_pipeline(
            pipeline, request, parts=parts, session=session, progress=progress, clock=now, token=new_token
        )
        look = look_after(Done(result, request.reads, verified=False), alerts, parts.store, now())
    finally:
        parts.close()
    _log_warnings(alerts.tell(look))
    return result


def project_alerts(project: Project, pipeline: Pipeline) -> Alerts:
    """The alerts of a pipeline, with no secret of the project in them."""
    secrets = Secrets()
    secrets.add(project.secrets())
    return alerts_of(pipeline, hidden=secrets.hidden, clock=now)


def _log_warnings(warnings: Sequence[str]) -> None:
    for warning in warnings:
        logging.getLogger(__name__).warning("%s", warning)


def _only_pipeline(project: Project) -> str:
    if len(project.syncs) == 1:
        return project.syncs[0]
    known = ", ".join(project.syncs) or "none"
    raise UsageError("name the pipeline to sync", where=str(project.root), hint=f"there are: {known}")


def open_parts(pipeline: Pipeline, *, command: str, known: SchemaCache | None = None) -> Parts:
    """The parts of a pipeline. Nothing is connected to yet; `command` is what leases say holds them."""
    return Parts(
        store=open_store(pipeline.state),
        staging=open_staging(pipeline.staging),
        open_source=partial(_open_source, pipeline.source, pipeline.primary, known, pipeline.mercy.max_query),
        open_target=partial(target_of, pipeline.target),
        holder=this_process(command),
        lease=pipeline.state.lease_seconds,
        hidden=_secrets_of(pipeline).hidden,
    )


def _secrets_of(pipeline: Pipeline) -> Secrets:
    models = (pipeline.source, pipeline.primary, pipeline.target, pipeline.staging, pipeline.state)
    secrets = Secrets()
    secrets.add(text for model in models if model is not None for text in secrets_in(model))
    return secrets


def source_of(connections: Connections, name: str) -> Source:
    """A source by its name, with the primary that its own entry names."""
    model = connections.source(name)
    ceiling = getattr(model, "ceiling", None)
    primary = connections.source(ceiling.primary) if ceiling else None
    return _open_source(model, primary, None, model.mercy.max_query)


def _open_source(
    model: SourceConnection,
    primary: SourceConnection | None,
    known: SchemaCache | None,
    max_query: timedelta | None,
) -> Source:
    from tidegate.sources.opening import open_source

    return open_source(model, primary, known, max_query=max_query)


def known_schemas(pipeline: Pipeline, *, refresh: bool = False) -> SchemaCache:
    """The tables of the pipeline's source as they were found within the hour.

    What the server shows depends on who asks, so another user, host or database has another file. Nothing of
    these can be read from it.
    """
    told = _settings(pipeline.source)
    who = [str(told.get(name)) for name in ("type", "host", "port", "database", "username", "path")]
    digest = hashlib.sha256("\n".join(who).encode()).hexdigest()[:12]
    known = SchemaCache(pipeline.folder / "schemas" / f"{safe_name(pipeline.source_name)}-{digest}.json")
    if refresh:
        known.forget()
    return known


def target_of(model: TargetConnection) -> Target:
    from tidegate.targets.opening import open_target

    return open_target(**_settings(model))


def open_staging(model: StagingArea) -> Staging:
    match model.type:
        case "local":
            return LocalStaging(model.path)
        case "s3":
            from tidegate.s3 import S3Place
            from tidegate.staging.s3 import S3Staging

            return S3Staging(S3Place.of(model))


def _settings(model: Model) -> dict[str, Any]:
    """An entry of connections.yml as keyword arguments, under the names that the file uses."""
    return model.model_dump(by_alias=True, exclude_none=True, exclude={"ceiling"})


def open_session(project: Project) -> LazySession:
    """The project's Spark session, which starts when there is data to move."""
    return LazySession(spark_settings(project))


def spark_settings(project: Project) -> SparkSettings:
    options = project.spark
    return SparkSettings(master=options.master, remote=options.remote, conf=dict(options.conf))

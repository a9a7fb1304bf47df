"""`tidegate redshift-local`: a stand-in for Redshift, for trying a pipeline without a cluster."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from tidegate.cli.commands import Command
from tidegate.core.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from tidegate.testing.redshift import Backend


@click.command(cls=Command, name="redshift-local")
@click.option(
    "--postgres",
    "url",
    metavar="URL",
    envvar="TIDEGATE_REDSHIFT_LOCAL_POSTGRES",
    help="The PostgreSQL to stand before, with its superuser: postgresql://user:password@host:port. Without "
    "it, one is started from the machine's packages.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=5439, show_default=True, metavar="PORT")
@click.option("--endpoint-url", metavar="URL", help="The S3 server that COPY reads from. [default: AWS]")
@click.option("--region", metavar="REGION", help="The region of that server.")
def command(*, url: str | None, port: int, endpoint_url: str | None, region: str | None) -> None:
    """Stand in for Amazon Redshift on this machine, until Ctrl-C.

    It speaks Redshift's protocol before a PostgreSQL, refuses what Redshift refuses, and runs COPY of Parquet
    files from S3, with the keys of this machine's AWS configuration where a statement names a role.
    """
    try:
        from tidegate.s3 import S3Place
        from tidegate.testing.redshift import RedshiftLocal
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the stand-in needs the package {error.name}, which is not installed",
            hint="pip install 'tidegate[redshift,postgresql]'",
        ) from error
    with _backend(url) as backend:
        stand_in = RedshiftLocal(backend, S3Place("", region=region, endpoint_url=endpoint_url), port=port)
        try:
            secret = backend.password if url is None else "that of the PostgreSQL behind"
            where = f"{stand_in.host}:{stand_in.port}, database postgres"
            click.echo(f"Redshift stands in at {where}, user {backend.user}, password {secret}")
            click.echo("Ctrl-C stops it.")
            signal.pause()
        finally:
            stand_in.close()


@contextmanager
def _backend(url: str | None) -> Iterator[Backend]:
    from urllib.parse import unquote, urlsplit

    from tidegate.testing.redshift import Backend
    from tidegate.testing.redshift.postgres import own_postgres

    if url is None:
        with own_postgres() as backend:
            yield backend
        return
    parts = urlsplit(url)
    if parts.scheme not in ("postgresql", "postgres") or not parts.hostname or not parts.username:
        raise UsageError("--postgres is no address", hint="write postgresql://user:password@host:port")
    yield Backend(parts.hostname, parts.port or 5432, unquote(parts.username), unquote(parts.password or ""))

"""The archiver's own file: one YAML document, wherever it lies, with `database`, `packer` and `watermark`.

    config = read_config(Path("watermark-config.yaml"))

It needs no project folder. Relative paths begin where the file lies; `.env` beside it is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import AfterValidator, Field, SecretStr

from tidegate.archive.naming import MOST_BITS
from tidegate.config.binding import Binder
from tidegate.config.connection_models import SparkOptions
from tidegate.config.kinds import Count, Model, Moment, Place, Port, ProjectPath, Text, Zone
from tidegate.config.loading import read_document
from tidegate.config.problems import config_error
from tidegate.config.secrets import Providers
from tidegate.config.showing import secrets_in
from tidegate.config.variables import read_variables
from tidegate.reach.login import Login, Tls

__all__ = ["ArchiveConfig", "OnProblem", "Policies", "login_of", "read_config"]

MOST_LAG_DAYS = 36_500
_TLS_OPTIONS = {"sslmode": "mode", "sslrootcert": "ca", "sslcert": "cert", "sslkey": "key"}


def _postgresql_url(url: SecretStr) -> SecretStr:
    login_of(url)
    return url


def _in_utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


DatabaseUrl = Annotated[SecretStr, AfterValidator(_postgresql_url)]
Instant = Annotated[Moment, AfterValidator(_in_utc)]


class OnProblem(StrEnum):
    STOP = "stop"
    """The window stays open, and the mark where it is."""
    SKIP = "skip"
    """The file is left out, and named in the window's list of problems."""


class Database(Model):
    url: DatabaseUrl
    table_name: Text
    uid_column: Text = "uid"
    created_at_column: Text = "created_at"
    created_at_timezone: Zone = "UTC"
    """Of a column that has no zone of its own."""
    location_column: Text = "file_location"
    archived_column: Text = "archived"
    lag_days: Annotated[int, Field(ge=0, le=MOST_LAG_DAYS)] = 7
    page_size: Count = 10_000


class Policies(Model):
    missing: OnProblem = OnProblem.STOP
    unreadable: OnProblem = OnProblem.STOP
    changed: OnProblem = OnProblem.STOP
    duplicate: OnProblem = OnProblem.STOP


class S3Access(Model):
    """How to reach buckets, both those that files lie in and the output; what is not said is AWS's custom."""

    region: Text | None = None
    endpoint_url: Text | None = None
    path_style: bool | None = None
    profile: Text | None = None
    role_arn: Text | None = None
    external_id: SecretStr | None = None
    access_key_id: SecretStr | None = None
    secret_access_key: SecretStr | None = None
    session_token: SecretStr | None = None


class Packer(Model):
    output_dir: Place
    input_dir: ProjectPath | None = None
    """Where relative locations begin."""
    max_shard_size: Annotated[int, Field(ge=1_000, le=1 << 42)] = 1_000_000_000
    n_bits: Annotated[int, Field(ge=0, le=MOST_BITS)] = 8
    compression_level: Annotated[int, Field(ge=1, le=19)] = 1
    engine: Literal["spark", "process"] = "spark"
    """Who packs: Spark's tasks, or this process alone."""
    on_problem: Policies = Field(default_factory=Policies)
    s3: S3Access = Field(default_factory=S3Access)


class WatermarkTable(Model):
    config_db_url: DatabaseUrl | None = None
    default_archived_until: Instant | None = None


class Metrics(Model):
    textfile: ProjectPath | None = None
    host: Text = "127.0.0.1"
    port: Port | None = None


class ArchiveConfig(Model):
    database: Database
    packer: Packer
    watermark: WatermarkTable = Field(default_factory=WatermarkTable)
    spark: SparkOptions = Field(default_factory=SparkOptions)
    metrics: Metrics = Field(default_factory=Metrics)

    @property
    def files_login(self) -> Login:
        return login_of(self.database.url)

    @property
    def mark_login(self) -> Login:
        return login_of(self.watermark.config_db_url or self.database.url)

    def secrets(self) -> Iterator[str]:
        """What must not be shown anywhere."""
        yield from secrets_in(self)
        yield from (login.password for login in (self.files_login, self.mark_login) if login.password)


def read_config(path: Path, environ: Mapping[str, str] | None = None) -> ArchiveConfig:
    """Read the file; everything that is wrong with it is raised at once, with its line."""
    root = path.absolute().parent
    variables = read_variables(root / ".env", os.environ if environ is None else environ)
    document = read_document(path, str(path))
    bound = Binder(document, variables.asking(Providers(root)), root).bind(ArchiveConfig, ())
    if bound.model is None:
        raise config_error([*document.problems, *bound.problems, *bound.missing])
    if document.problems:
        raise config_error(document.problems)
    return bound.model


def login_of(url: SecretStr) -> Login:
    """How to reach the database at `postgresql://user:password@host:port/name?sslmode=…`.

    A driver's name behind a plus, as other tools want it there, is let pass.
    """
    text = url.get_secret_value()
    parts = urlsplit(text)
    if parts.scheme.partition("+")[0] not in ("postgresql", "postgres"):
        raise ValueError("expected an address that begins with postgresql://")
    try:
        port = parts.port or 5432
    except ValueError:
        raise ValueError("the port in the address is not a number; escape `/`, `?`, `#` and `@`") from None
    if not parts.hostname or not parts.path.strip("/"):
        raise ValueError("expected an address such as postgresql://user:password@host/database")
    return Login(
        host=unquote(parts.hostname),
        port=port,
        database=unquote(parts.path.strip("/")),
        username=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        tls=_tls(parts.query),
    )


def _tls(query: str) -> Tls:
    options = dict(parse_qsl(query))
    for name in options:
        if name not in _TLS_OPTIONS:
            known = ", ".join(_TLS_OPTIONS)
            raise ValueError(f"the address has an unknown option `{name}`: there are {known}")
    return Tls(**{_TLS_OPTIONS[name]: value for name, value in options.items()})

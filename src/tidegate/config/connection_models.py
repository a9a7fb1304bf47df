"""What connections.yml may say, key by key.

What can be left out shows its default, or `None`.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, Field, SecretStr, model_validator

from tidegate.config.kinds import (
    Count,
    DatabaseUrl,
    Duration,
    FilePath,
    LeaseTime,
    Model,
    Names,
    Place,
    Port,
    Prefix,
    ProjectPath,
    SomeTime,
    Text,
    Zone,
)
from tidegate.core.blackouts import Blackout


def _bastion(value: str) -> str:
    if value.startswith("-") or any(c.isspace() or not c.isprintable() for c in value):
        raise ValueError("expected a name without blanks that does not begin with `-`")
    return value


def _role(value: str) -> str:
    one = r"arn:aws[\w-]*:iam::\d{12}:role/[^\s',]+"
    if not re.fullmatch(f"{one}(,{one})*", value):  # a chain: each takes on the next
        raise ValueError("expected a role such as arn:aws:iam::123456789012:role/copy")
    return value


Bastion = Annotated[str, Field(min_length=1), AfterValidator(_bastion)]
Role = Annotated[str, Field(min_length=1), AfterValidator(_role)]


class Tls(Model):
    mode: Literal["disable", "prefer", "require", "verify-ca", "verify-full"] = "verify-full"
    ca: ProjectPath | None = None
    cert: ProjectPath | None = None
    key: ProjectPath | None = None

    @model_validator(mode="after")
    def _files_that_fit(self) -> Tls:
        if (self.cert is None) != (self.key is None):
            raise ValueError("`cert` and `key` belong together: give both or neither")
        if self.ca is not None and not self.mode.startswith("verify"):
            raise ValueError("`ca` is looked at with mode verify-ca or verify-full only")
        if self.cert is not None and self.mode in ("disable", "prefer"):
            raise ValueError("`cert` needs mode require, verify-ca or verify-full")
        return self


class SshTunnel(Model):
    enabled: bool = True
    host: Bastion | None = None
    port: Port | None = None
    """None: 22, or what the user's own ssh configuration says."""
    username: Bastion | None = None
    private_key_path: ProjectPath | None = None
    known_hosts: ProjectPath | None = None
    local_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """0: any free port."""

    @model_validator(mode="after")
    def _host_if_enabled(self) -> SshTunnel:
        if self.enabled and self.host is None:
            raise ValueError("`host` is missing: the bastion to go through, or set `enabled: false`")
        return self


_NEEDS_TLS = "`iam` sends its token as it is: it needs `tls` with mode require or stricter"


class Iam(Model):
    """AWS signs us in: a token for a quarter of an hour in place of a password."""

    region: Text | None = None
    profile: Text | None = None
    access_key_id: SecretStr | None = None
    secret_access_key: SecretStr | None = None
    session_token: SecretStr | None = None


class RedshiftIam(Iam):
    cluster: Text | None = None
    workgroup: Text | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> RedshiftIam:
        if (self.cluster is None) == (self.workgroup is None):
            raise ValueError("give `cluster`, or `workgroup` for Redshift Serverless, and not both")
        return self


class Server(Model):
    """What all database servers have in common."""

    host: Text
    database: Text
    username: Text | None = None
    password: SecretStr | None = None
    tls: Tls | None = None
    ssh_tunnel: SshTunnel | None = None
    iam: Iam | None = None

    @model_validator(mode="after")
    def _token_or_password(self) -> Self:
        if self.iam is None:
            return self
        if self.password is not None:
            raise ValueError("`iam` takes the place of `password`: give one of them")
        if isinstance(self.iam, RedshiftIam):
            return self
        if self.username is None:
            raise ValueError("`iam` needs the `username` to sign in")
        if self.tls is None or self.tls.mode in ("disable", "prefer"):
            raise ValueError(_NEEDS_TLS)
        return self


class MercyOptions(Model):
    """What a source is spared; a pipeline's own words go before those of its source."""

    max_connections: Count | None = None
    max_rows_per_second: Count | None = None
    max_query: SomeTime | None = None
    max_running: Count | None = None
    max_replica_lag: Duration | None = None
    slow_down_at: Annotated[float, Field(gt=1, le=1000)] | None = None
    max_pause: Duration | None = None
    blackout: Names | None = None
    timezone: Zone | None = None

    @model_validator(mode="after")
    def _hours(self) -> MercyOptions:
        self.blackouts()
        return self

    def blackouts(self) -> tuple[Blackout, ...] | None:
        if self.blackout is None:
            return None
        return tuple(Blackout.written(text, self.timezone or "UTC") for text in self.blackout)


class SourceCeiling(Model):
    primary: Text
    """The source whose transactions decide, where this one is a replica of it."""


class MySQLSource(Server):
    type: Literal["mysql"] = "mysql"
    port: Port = 3306
    ceiling: SourceCeiling | None = None
    mercy: MercyOptions = Field(default_factory=MercyOptions)


class PostgreSQLSource(Server):
    type: Literal["postgresql"] = "postgresql"
    port: Port = 5432
    schema_name: Text = Field(default="public", alias="schema")
    ceiling: SourceCeiling | None = None
    mercy: MercyOptions = Field(default_factory=MercyOptions)


class SQLiteSource(Model):
    type: Literal["sqlite"] = "sqlite"
    path: FilePath
    mercy: MercyOptions = Field(default_factory=MercyOptions)


class DuckDBTarget(Model):
    type: Literal["duckdb"] = "duckdb"
    path: FilePath
    schema_name: Text = Field(default="main", alias="schema")
    wait: Duration = timedelta(seconds=30)


class PostgreSQLTarget(Server):
    type: Literal["postgresql"] = "postgresql"
    port: Port = 5432
    schema_name: Text = Field(default="public", alias="schema")


class RedshiftTarget(Server):
    type: Literal["redshift"] = "redshift"
    port: Port = 5439
    iam: RedshiftIam | None = None
    schema_name: Text = Field(default="public", alias="schema")
    iam_role: Role | None = None
    """None: the cluster's default role."""
    query_group: Text | None = None
    statement_timeout: SomeTime | None = None

    @model_validator(mode="after")
    def _what_the_driver_can(self) -> RedshiftTarget:
        if self.tls is None:
            return self
        if self.tls.ca or self.tls.cert:
            raise ValueError("`tls` has no files here: the driver brings Amazon's authorities with it")
        tunnelled = self.ssh_tunnel is not None and self.ssh_tunnel.enabled
        if tunnelled and self.tls.mode == "verify-full":
            raise ValueError("through a tunnel the driver cannot compare the host's name: use mode verify-ca")
        return self


class S3Access(Model):
    """How to reach S3, or something that speaks its language. What is left out follows AWS's conventions."""

    region: Text | None = None
    endpoint_url: Text | None = None
    path_style: bool | None = None
    profile: Text | None = None
    role_arn: Text | None = None
    external_id: SecretStr | None = None
    access_key_id: SecretStr | None = None
    secret_access_key: SecretStr | None = None
    session_token: SecretStr | None = None

    @model_validator(mode="after")
    def _one_way_to_log_in(self) -> S3Access:
        keys = (self.access_key_id, self.secret_access_key)
        if None in keys and keys != (None, None):
            raise ValueError("`access_key_id` and `secret_access_key` belong together: give both or neither")
        if self.session_token is not None and None in keys:
            raise ValueError("`session_token` needs `access_key_id` and `secret_access_key`")
        if self.profile is not None and None not in keys:
            raise ValueError("`profile` and `access_key_id` exclude each other: give one of them")
        if self.external_id is not None and self.role_arn is None:
            raise ValueError("`external_id` needs `role_arn`")
        return self


class DeltaTarget(S3Access):
    type: Literal["delta"] = "delta"
    path: Place

    @model_validator(mode="after")
    def _access_to_a_bucket(self) -> DeltaTarget:
        given = self.model_fields_set - {"type", "path"}
        if given and not self.path.startswith("s3://"):
            raise ValueError(f"`{min(given)}` is for tables at s3://bucket/prefix; this path is a folder")
        if self.role_arn is not None:
            raise ValueError(
                "no role can be taken on for Delta tables: give keys, or a `profile` that has them"
            )
        return self


class Bucket(S3Access):
    """A place in S3."""

    bucket: Text
    prefix: Prefix = ""


class S3Config(S3Access):
    """An entry of `s3_configs`, as older files have it: a place for segments, with the state beside it."""

    bucket_name: Text
    incremental_path: Prefix = "incremental/"

    def staging(self) -> S3Staging:
        return S3Staging(bucket=self.bucket_name, prefix=self.incremental_path, **self._access())

    def state(self) -> S3State:
        return S3State(bucket=self.bucket_name, prefix="watermarks/v2/", **self._access())

    def _access(self) -> dict[str, Any]:
        renamed = {"bucket_name", "incremental_path"}
        return {name: value for name, value in self if name not in renamed}


class LocalStaging(Model):
    type: Literal["local"] = "local"
    path: ProjectPath


class S3Staging(Bucket):
    type: Literal["s3"] = "s3"


class Leasing(Model):
    """What all stores have in common."""

    lease_seconds: LeaseTime = timedelta(seconds=60)


class LocalState(Leasing):
    type: Literal["local"] = "local"
    path: ProjectPath


class SqlState(Leasing):
    type: Literal["sql"] = "sql"
    url: DatabaseUrl
    """It may carry a password."""
    tls: Tls | None = None
    ssh_tunnel: SshTunnel | None = None
    iam: Iam | None = None

    @model_validator(mode="after")
    def _servers_only(self) -> SqlState:
        if self.url.get_secret_value().startswith("sqlite") and (self.tls or self.ssh_tunnel or self.iam):
            raise ValueError("`tls`, `ssh_tunnel` and `iam` are for servers; SQLite is a file")
        if self.iam is not None and (self.tls is None or self.tls.mode in ("disable", "prefer")):
            raise ValueError(_NEEDS_TLS)
        return self


class S3State(Bucket, Leasing):
    type: Literal["s3"] = "s3"


class DeltaState(Leasing):
    type: Literal["delta"] = "delta"
    path: Place


class SparkOptions(Model):
    master: Text = "local[*]"
    remote: Text | None = None
    conf: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_of_two(self) -> SparkOptions:
        if self.remote is not None and not self.remote.startswith("sc://"):
            raise ValueError(
                "`remote` is the address of a Spark Connect server, such as sc://spark.example.com:15002"
            )
        if self.remote is not None and "master" in self.model_fields_set:
            raise ValueError("`master` and `remote` exclude each other: give one of them")
        return self


SourceConnection = MySQLSource | PostgreSQLSource | SQLiteSource
TargetConnection = DuckDBTarget | PostgreSQLTarget | RedshiftTarget | DeltaTarget
StagingArea = LocalStaging | S3Staging
StateStore = LocalState | SqlState | S3State | DeltaState


def by_type(union: Any) -> dict[str, type[Model]]:
    """The models of a union under the names that `type:` gives them."""
    return {model.model_fields["type"].default: model for model in get_args(union)}


class ConnectionSections(Model):
    sources: dict[str, Any] = Field(default_factory=dict)
    targets: dict[str, Any] = Field(default_factory=dict)


class ConnectionsFile(Model):
    """The sections of connections.yml; their entries are read one by one."""

    connections: ConnectionSections = Field(default_factory=ConnectionSections)
    s3_configs: dict[str, Any] = Field(default_factory=dict)
    staging: dict[str, Any] = Field(default_factory=dict)
    state: dict[str, Any] = Field(default_factory=dict)
    alerts: dict[str, Any] = Field(default_factory=dict)
    spark: SparkOptions = Field(default_factory=SparkOptions)

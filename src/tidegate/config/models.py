"""What config files may say, key by key.

Every value in a file can be left out where a default is shown or `None` stands; a key without a value counts
as left out. Scalars arrive as text and are read as the type that is wanted here. The built-in defaults of
what a table does are those of `settings.TableSettings`: here `None` means "not said at this level".
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args
from urllib.parse import quote, unquote

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    model_validator,
)

from tidegate.config.settings import Compression, Layout, TableOrder, TableSettings
from tidegate.config.spelling import did_you_mean
from tidegate.core.blackouts import Blackout
from tidegate.core.quality import OnFailure
from tidegate.core.strategies import Mask, NullCursorPolicy, Strategy, WriteMode

__all__ = [
    "DeltaState",
    "DeltaTarget",
    "DuckDBTarget",
    "LocalStaging",
    "LocalState",
    "MySQLSource",
    "PipelineOptions",
    "PostgreSQLSource",
    "PostgreSQLTarget",
    "RedshiftTarget",
    "S3Staging",
    "S3State",
    "SQLiteSource",
    "SourceConnection",
    "SparkOptions",
    "SqlState",
    "StagingArea",
    "StateStore",
    "TableOptions",
    "TableSettings",
    "TargetConnection",
]


class Model(BaseModel):
    """The root of all: unknown keys are errors, and nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _empty_is_left_out(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {key: value for key, value in data.items() if value is not None}
        return data

    def unavailable(self) -> str | None:
        """What of this cannot be used yet, in words; None if all of it can."""
        return None


# ---- Kinds of value -------------------------------------------------------------------------------------

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST = timedelta(days=3650)
_SHORTEST_LEASE, _LONGEST_LEASE = timedelta(seconds=2), timedelta(hours=1)


def _duration(value: Any) -> timedelta:
    """Seconds, or a number with its unit: `5`, `0.5`, `500ms`, `5s`, `2m`, `1h`, `1d`."""
    if isinstance(value, timedelta):
        return value
    text = str(value).strip().lower()
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = text[len(number) :] or "s"
    try:
        seconds = float(number) * _UNITS[unit]
        found = timedelta(seconds=seconds)
    except (KeyError, ValueError, OverflowError):
        raise ValueError("expected seconds, or a number with ms, s, m, h or d such as 5s or 2m") from None
    if not timedelta(0) <= found <= _LONGEST:
        raise ValueError("expected a duration between 0 and ten years")
    return found


def _lease_time(value: timedelta) -> timedelta:
    if not _SHORTEST_LEASE <= value <= _LONGEST_LEASE:
        raise ValueError("expected a duration between 2 seconds and an hour")
    return value


def _moment(value: Any) -> datetime:
    """Not left to pydantic, which takes `2025` for seconds since 1970."""
    if isinstance(value, datetime):
        return value
    try:
        return datetime.fromisoformat(str(value).strip())
    except ValueError:
        raise ValueError("expected a date and time such as 2025-01-01 00:00:00") from None


def _zone(name: str) -> str:
    from zoneinfo import ZoneInfo, available_timezones

    if name == "UTC":
        return name
    try:
        return ZoneInfo(name).key
    except (ValueError, OSError, LookupError):  # a name can also lead to a folder, or outside of them all
        near = did_you_mean(name, available_timezones())
        raise ValueError(f"expected a time zone such as Europe/Berlin or UTC{near}") from None


def _from_root(path: Path, info: ValidationInfo) -> Path:
    """Relative paths begin at the folder that holds `config/`."""
    if "\0" in str(path):
        raise ValueError("a path cannot contain the character U+0000")
    try:
        expanded = path.expanduser()
    except RuntimeError:
        raise ValueError("the home folder that `~` stands for is not known") from None
    root = info.context.get("root") if isinstance(info.context, dict) else None
    return Path(root) / expanded if root else expanded


def _on_disk(path: Path) -> Path:
    if path.name == ":memory:":
        raise ValueError("a database in memory is gone when the run ends; name a file")
    return path


def _place(value: str, info: ValidationInfo) -> str:
    """A folder, or an address such as s3://bucket/prefix."""
    return value if "://" in value else str(_from_root(Path(value), info))


def _database_url(url: SecretStr, info: ValidationInfo) -> SecretStr:
    """The address of a database; SQLite's may be a relative path: `sqlite://state.db`."""
    scheme, colon, rest = url.get_secret_value().partition(":")
    if not colon or scheme not in ("sqlite", "postgresql", "mysql"):
        raise ValueError("expected an address that begins with sqlite://, postgresql:// or mysql://")
    place = rest.removeprefix("//")
    if scheme != "sqlite" or place.startswith("/"):
        return url
    return SecretStr(f"sqlite://{quote(str(_from_root(Path(unquote(place)), info)))}")


def _some_time(value: timedelta) -> timedelta:
    if value <= timedelta(0):
        raise ValueError("expected more than no time at all")
    return value


def _one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _once_each(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError("the same name stands in the list twice")
    return names


def _key_prefix(value: str) -> str:
    if ".." in value.replace("\\", "/").split("/"):
        raise ValueError("a prefix cannot contain `..`")
    return value


def _name(value: str) -> str:
    if value != value.strip() or any(not c.isprintable() or c in "/\\" for c in value):
        raise ValueError("a name has no `/`, no `\\`, no line breaks and no blanks at its ends")
    return value


def _bastion(value: str) -> str:
    if value.startswith("-") or any(c.isspace() or not c.isprintable() for c in value):
        raise ValueError("expected a name without blanks that does not begin with `-`")
    return value


Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_name)]
Names = Annotated[tuple[Text, ...], BeforeValidator(_one_or_many), AfterValidator(_once_each)]
Port = Annotated[int, Field(ge=1, le=65535)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Percentage = Annotated[float, Field(ge=0, le=100)]
Duration = Annotated[timedelta, BeforeValidator(_duration)]
LeaseTime = Annotated[Duration, AfterValidator(_lease_time)]
Moment = Annotated[datetime, BeforeValidator(_moment)]
Zone = Annotated[str, AfterValidator(_zone)]
ProjectPath = Annotated[Path, AfterValidator(_from_root)]
FilePath = Annotated[Path, AfterValidator(_on_disk), AfterValidator(_from_root)]
DatabaseUrl = Annotated[SecretStr, AfterValidator(_database_url)]
Place = Annotated[Text, AfterValidator(_place)]
Prefix = Annotated[str, AfterValidator(_key_prefix)]


# ---- connections.yml ------------------------------------------------------------------------------------


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
    host: Annotated[str, Field(min_length=1), AfterValidator(_bastion)] | None = None
    port: Port | None = None
    """None: 22, or what the user's own ssh configuration says."""
    username: Annotated[str, Field(min_length=1), AfterValidator(_bastion)] | None = None
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
    max_query: Annotated[Duration, AfterValidator(_some_time)] | None = None
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
    iam_role: Text | None = None

    def unavailable(self) -> str | None:
        return "targets of type `redshift` are not available yet"


class DeltaTarget(Model):
    type: Literal["delta"] = "delta"
    path: Place

    def unavailable(self) -> str | None:
        return "targets of type `delta` are not available yet"


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
    spark: SparkOptions = Field(default_factory=SparkOptions)


# ---- pipelines/NAME.yml ---------------------------------------------------------------------------------


class RetryOptions(Model):
    max: Annotated[int, Field(ge=0, le=1000)] | None = None
    backoff_seconds: Duration | None = None


class TableCeiling(Model):
    max_wait: Duration | None = None
    lag: Duration | None = None
    fallback_lag: Duration | None = None
    ignore: Names | None = None
    lookback_ids: Annotated[int, Field(ge=0)] | None = None


class PipelineCeiling(TableCeiling):
    primary: Text | None = None


class TableProcessing(Model):
    batch_size: Count | None = None
    parallelism: Count | None = None


class PipelineProcessing(TableProcessing):
    strategy: TableOrder | None = None
    max_parallel_tables: Annotated[int, Field(ge=1, le=1000)] | None = None
    timeout_minutes: Annotated[float, Field(gt=0, le=1_000_000)] | None = None

    @model_validator(mode="after")
    def _parallel_if_many(self) -> PipelineProcessing:
        if self.max_parallel_tables is not None and self.strategy is not TableOrder.PARALLEL:
            raise ValueError("`max_parallel_tables` needs `strategy: parallel`")
        return self


class S3Options(Model):
    """How segments lie in staging. The section is called `s3` for any kind of staging."""

    isolation_prefix: Prefix | None = None
    partition_strategy: Layout | None = None
    compression: Compression | None = None


class ColumnOptions(Model):
    include: Names | None = None
    exclude: Names | None = None
    mask: dict[Text, Mask] = Field(default_factory=dict)


class ColumnChecks(Model):
    max_null_percentage: Percentage | None = None
    allowed: Annotated[tuple[str, ...], BeforeValidator(_one_or_many)] | None = None
    min: Text | None = None
    max: Text | None = None
    matches: Text | None = None

    @model_validator(mode="after")
    def _something(self) -> ColumnChecks:
        if not self.model_fields_set:
            raise ValueError("it says nothing about the column")
        return self


class RowCountOptions(Model):
    max_drift_percentage: Annotated[float, Field(gt=0, le=1_000_000)]
    runs: Annotated[int, Field(ge=3, le=1000)] = 10


class FreshnessOptions(Model):
    max_age: Duration
    column: Text | None = None


class RowCheckOptions(Model):
    name: Text
    sql: Text


class ValidationOptions(Model):
    enable_data_quality_checks: bool | None = None
    on_failure: OnFailure | None = None
    max_null_percentage: Percentage | None = None
    unique_key: bool | None = None
    columns: dict[Text, ColumnChecks] = Field(default_factory=dict)
    checks: tuple[RowCheckOptions, ...] = ()
    row_count: RowCountOptions | None = None
    freshness: FreshnessOptions | None = None

    @model_validator(mode="after")
    def _names_once(self) -> ValidationOptions:
        names = [check.name for check in self.checks]
        if len(set(names)) < len(names):
            raise ValueError("two checks have the same name")
        return self


class SharedOptions(Model):
    """What a pipeline says for all of its tables and a table for itself."""

    write_mode: WriteMode | None = None
    null_cursor: NullCursorPolicy | None = None
    cursor_timezone: Zone | None = None
    default_start: Moment | None = None
    retries: RetryOptions = Field(default_factory=RetryOptions)


class TableOptions(SharedOptions):
    cdc_strategy: Strategy | None = None
    cdc_timestamp_column: Text | None = None
    cdc_id_column: Text | None = None
    target_name: Text | None = None
    full_sync_mode: Literal[WriteMode.REPLACE, WriteMode.APPEND] | None = None
    keys: Names | None = None
    columns: ColumnOptions = Field(default_factory=ColumnOptions)
    filter: Text | None = None
    query: Text | None = None
    ceiling: TableCeiling = Field(default_factory=TableCeiling)
    processing: TableProcessing = Field(default_factory=TableProcessing)
    validation: ValidationOptions = Field(default_factory=ValidationOptions)


class PipelineOptions(SharedOptions):
    name: Name
    source: Text
    target: Text
    staging: Text | None = None
    state: Text | None = None
    kind: Literal["sync", "delta"] = "sync"
    version: Any = None
    """Older files have one. It means nothing."""
    description: str | None = None
    processing: PipelineProcessing = Field(default_factory=PipelineProcessing)
    s3: S3Options = Field(default_factory=S3Options)
    ceiling: PipelineCeiling = Field(default_factory=PipelineCeiling)
    mercy: MercyOptions = Field(default_factory=MercyOptions)


class PipelineFile(Model):
    """The two parts of a pipeline's file; its tables are read one by one."""

    pipeline: PipelineOptions
    tables: dict[str, Any]

"""What pipelines/NAME.yml may say, key by key.

The built-in defaults of what a table does are those of `settings.TableSettings`: here `None` means "not said
at this level".
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from tidegate.config.connection_models import MercyOptions
from tidegate.config.kinds import (
    Count,
    Duration,
    Model,
    Moment,
    Name,
    Names,
    Percentage,
    Prefix,
    Text,
    Values,
    Zone,
)
from tidegate.config.settings import Compression, Layout, TableOrder
from tidegate.core.lossy import OnLossy
from tidegate.core.quality import OnFailure
from tidegate.core.strategies import DistStyle, Mask, NullCursorPolicy, Strategy, WriteMode


def _null_is_a_word(data: Any) -> Any:
    """An unquoted null is the name of a policy here."""
    if not isinstance(data, dict):
        return data
    return {name: OnLossy.NULL if value is None else value for name, value in data.items()}


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
    on_lossy: Annotated[dict[Text, OnLossy], BeforeValidator(_null_is_a_word)] = Field(default_factory=dict)


class ColumnChecks(Model):
    max_null_percentage: Percentage | None = None
    allowed: Values | None = None
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


class DeltaOptions(Model):
    """How a table that is made as a Delta table is laid out."""

    partition_by: Names | None = None
    cluster_by: Names | None = None

    @model_validator(mode="after")
    def _apart(self) -> DeltaOptions:
        both = set(self.partition_by or ()) & set(self.cluster_by or ())
        if both:
            raise ValueError(
                f"`{min(both)}` stands in `partition_by` and `cluster_by`: one of them is enough"
            )
        return self


class RedshiftOptions(Model):
    """How a table that is made at Redshift is laid out."""

    dist_style: DistStyle | None = None
    dist_key: Text | None = None
    sort_key: Names | None = None

    @model_validator(mode="after")
    def _key_and_style(self) -> RedshiftOptions:
        if self.dist_style is DistStyle.KEY and self.dist_key is None:
            raise ValueError("`dist_style: key` needs a `dist_key`")
        if self.dist_key is not None and self.dist_style not in (None, DistStyle.KEY):
            raise ValueError("`dist_key` goes with `dist_style: key` only")
        return self


class SharedOptions(Model):
    """What a pipeline says for all of its tables and a table for itself."""

    write_mode: WriteMode | None = None
    null_cursor: NullCursorPolicy | None = None
    on_lossy: OnLossy | None = None
    cursor_timezone: Zone | None = None
    default_start: Moment | None = None
    retries: RetryOptions = Field(default_factory=RetryOptions)

    @model_validator(mode="before")
    @classmethod
    def _null_is_a_policy(cls, data: Any) -> Any:
        if isinstance(data, dict) and "on_lossy" in data:
            return data | _null_is_a_word({"on_lossy": data["on_lossy"]})
        return data


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
    delta: DeltaOptions = Field(default_factory=DeltaOptions)
    redshift: RedshiftOptions = Field(default_factory=RedshiftOptions)


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
    alerts: Names | None = None
    """Entries of connections.yml; None: all of them."""


class PipelineFile(Model):
    """The parts of a pipeline's file; its tables and its job are read one by one."""

    pipeline: PipelineOptions
    tables: dict[str, Any]
    job: dict[str, Any] | None = None

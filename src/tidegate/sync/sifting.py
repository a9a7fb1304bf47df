"""Judging rows in quarantine once more, by the rules that hold now: some may have been relaxed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.arrow import arrow_schema
from tidegate.config.settings import TableSettings
from tidegate.core.errors import UsageError
from tidegate.core.quality import OnFailure, Rules
from tidegate.core.receipts import Segment
from tidegate.core.types import Schema
from tidegate.spark.screening import REASON, Screen, Sorted, demand_rules
from tidegate.staging.contract import ObjectWriter, Staging
from tidegate.staging.layout import SegmentPath
from tidegate.targets.contract import StagedSegment
from tidegate.targets.segments import batches

if TYPE_CHECKING:
    from tidegate.sync.quarantine import Quarantined


@dataclass(frozen=True)
class Sifted:
    """What became of one file."""

    passed: Segment | None = None
    broken: Segment | None = None
    """What stays in quarantine; the file itself, if all of it does."""


@dataclass(frozen=True)
class Sieve:
    """The rules for single rows, at work on staged files. Nothing refers yet to what it writes."""

    staging: Staging
    settings: TableSettings
    token: Callable[[], str]
    rules: Rules = field(init=False)

    def __post_init__(self) -> None:
        given = self.settings.validation or Rules()
        rules = Rules(OnFailure.QUARANTINE, columns=given.columns, checks=given.checks)
        object.__setattr__(self, "rules", rules)

    def sift(self, file: Quarantined) -> Sifted:
        self._demand_judgeable(file)
        broken = sum(
            pc.sum(pc.invert(found.passed)).as_py() for _, found in self._judged(file) if found.passed
        )
        if not broken:
            return Sifted(passed=file.segment)
        return Sifted(broken=file.segment) if broken == file.segment.rows else self._split(file)

    def _demand_judgeable(self, file: Quarantined) -> None:
        if file.reasons:
            raise UsageError(
                f"rows of run {file.run_id} are here for what they are together ({'; '.join(file.reasons)}), "
                "and cannot be judged by themselves",
                where=str(file.stream),
                hint="`--as-they-are` brings them without a judgement",
            )
        masked = [rule.column for rule in self.rules.columns if rule.column in self.settings.masks]
        if masked or (self.rules.checks and self.settings.masks):
            raise UsageError(
                f"values of {masked[0] if masked else 'this table'} are masked, and what is staged does not "
                "tell whether they break a rule",
                where=str(file.stream),
                hint="`--as-they-are` brings the rows without a judgement",
            )

    def _judged(self, file: Quarantined) -> Iterator[tuple[pa.RecordBatch, Sorted]]:
        schema = _schema(file)
        # What was read before a column was there has no value in it, which breaks no rule but one.
        there = frozenset(schema.names)
        known = [rule for rule in self.rules.columns if rule.column in there or rule.max_null_percentage == 0]
        rules = replace(self.rules, columns=tuple(known))
        demand_rules(rules, schema.columns, str(file.stream))
        screen = Screen(rules, schema.columns, str(file.stream))
        key = file.segment.key
        staged = StagedSegment(
            file.segment, schema, self.staging.local_path(key), partial(self.staging.open, key)
        )
        for batch in batches(staged):
            yield batch, screen.sort(batch)

    def _split(self, file: Quarantined) -> Sifted:
        settings, attempt = self.settings, self.token()
        paths = SegmentPath(settings.layout, settings.prefix, file.stream, file.run_id or "", file.at)
        schema = arrow_schema(_schema(file).columns).remove_metadata()
        with_reason = schema.append(pa.field(REASON, pa.string()))
        chunk = file.segment.chunk
        with (
            self.staging.create(paths.segment(chunk, attempt)) as good,
            self.staging.create(paths.quarantine(chunk, attempt)) as bad,
        ):
            rows = self._divided(file, good, schema, bad, with_reason)
        return Sifted(_segment(file, good, rows), _segment(file, bad, file.segment.rows - rows))

    def _divided(
        self,
        file: Quarantined,
        good: ObjectWriter,
        schema: pa.Schema,
        bad: ObjectWriter,
        with_reason: pa.Schema,
    ) -> int:
        """Write each row where it belongs; returns how many have passed."""
        rows = 0
        with (
            pq.ParquetWriter(good.file, schema, version="2.6", store_schema=False) as passed,
            pq.ParquetWriter(bad.file, with_reason, version="2.6", store_schema=False) as broken,
        ):
            for batch, found in self._judged(file):
                fine = batch if found.passed is None else batch.filter(found.passed)
                passed.write_batch(pa.record_batch(fine.columns, schema=schema))
                rows += fine.num_rows
                if found.passed is not None:
                    rest = batch.filter(pc.invert(found.passed))
                    broken.write_batch(pa.record_batch([*rest.columns, found.reasons], schema=with_reason))
        return rows


def _schema(file: Quarantined) -> Schema:
    return Schema.from_json(file.schemas[file.segment.schema])


def _segment(file: Quarantined, writer: ObjectWriter, rows: int) -> Segment:
    written = writer.result
    return replace(
        file.segment,
        key=written.key,
        rows=rows,
        bytes=written.bytes,
        etag=written.etag,
        checksum=written.checksum,
    )

"""Tidegate in Dagster: the tables of a pipeline as assets.

    from tidegate.integrations.dagster import sync_assets

    orders = sync_assets(project="/srv/shop", pipeline="shop", tables=["orders", "customers"])
    defs = Definitions(assets=[orders])

One step syncs all tables that are selected, since they share a source and a Spark session. Each one's figures
are the metadata of its materialization; one that fails does not keep the others from being materialized.
"""

# Dagster looks at the annotations themselves, so they cannot be texts here.
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetsDefinition,
    AssetSpec,
    Failure,
    MaterializeResult,
    multi_asset,
)

from tidegate.integrations.executions import Outcome, Sync, start

__all__ = ["sync_assets"]

_GOOD = ("success", "nothing_new")
_FIGURES = ("status", "rows_extracted", "rows_loaded", "files_created", "bytes", "duration_seconds")


def sync_assets(
    *,
    project: str,
    pipeline: str,
    tables: Sequence[str],
    options: Sequence[str] = (),
    program: Sequence[str] = ("tidegate",),
    key_prefix: Sequence[str] | None = None,
    **asset_options: Any,
) -> AssetsDefinition:
    """Assets `pipeline/table` that one step syncs. Further options are those of `dagster.multi_asset`."""
    prefix = [pipeline] if key_prefix is None else list(key_prefix)
    keys = {AssetKey([*prefix, table]): table for table in tables}
    asset_options.setdefault("name", f"sync_{pipeline}")

    @multi_asset(specs=[AssetSpec(key) for key in keys], can_subset=True, **asset_options)
    def synced(context: AssetExecutionContext) -> Iterator[Any]:
        chosen = {key: keys[key] for key in context.selected_asset_keys}
        sync = Sync(project, pipeline, tuple(sorted(chosen.values())), tuple(options), tuple(program))
        execution_id = f"dagster.{context.run.run_id}.{context.op_execution_context.op.name}"
        outcome = start(sync, execution_id, Path(project) / ".tidegate" / "executions").wait()
        context.log.info(outcome.log)
        found = _tables(outcome)
        for key, table in chosen.items():
            if found.get(table, {}).get("status") in _GOOD:
                yield MaterializeResult(asset_key=key, metadata=_metadata(outcome, found[table]))
        if outcome.exit_code != 0:
            raise Failure(outcome.words)

    return synced


def _tables(outcome: Outcome) -> Mapping[str, Any]:
    found: Mapping[str, Any] = outcome.result["table_results"] if isinstance(outcome.result, dict) else {}
    return found


def _metadata(outcome: Outcome, table: Mapping[str, Any]) -> dict[str, Any]:
    window = table["window"]
    figures = {name: table[name] for name in _FIGURES}
    return {**figures, "up_to": window["high"] or "", "execution_id": outcome.result["execution_id"]}

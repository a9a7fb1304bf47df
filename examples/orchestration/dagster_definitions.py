"""The tables of a pipeline as assets, synced every quarter of an hour."""

from dagster import Definitions, ScheduleDefinition, define_asset_job

from tidegate.integrations.dagster import sync_assets

shop = sync_assets(
    project="/srv/shop",
    pipeline="shop",
    tables=["orders", "customers"],
    program=["/opt/tidegate/bin/tidegate"],
)
job = define_asset_job("sync_shop", selection=[shop])

defs = Definitions(
    assets=[shop], jobs=[job], schedules=[ScheduleDefinition(job=job, cron_schedule="*/15 * * * *")]
)

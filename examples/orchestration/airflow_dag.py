"""Every quarter of an hour; while a sync runs, no worker waits for it."""

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from tidegate.integrations.airflow import TidegateSyncOperator

with DAG(
    dag_id="shop",
    schedule="*/15 * * * *",
    start_date=datetime(2025, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
) as dag:
    TidegateSyncOperator(
        task_id="sync_shop",
        project="/srv/shop",
        pipeline="shop",
        program=["/opt/tidegate/bin/tidegate"],
        deferrable=True,
    )

"""A window for a Spark job, and a memory of it: the cells of a notebook.

    python examples/tracker.py /tmp/watermarks

On Databricks or another cluster, `spark` is there already, and the place is one that every node reaches, such
as `delta+s3://bucket/ops/watermarks`.
"""

# %% Where windows are remembered: any store will do. This one is two Delta tables.
import sys
from datetime import UTC, datetime, timedelta
from enum import Enum

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tidegate import WatermarkTracker

place = sys.argv[1] if len(sys.argv) > 1 else "./watermarks"
spark = SparkSession.builder.getOrCreate()
tracker = WatermarkTracker(f"delta://{place}")


class Table(Enum):
    WOS = "wos_pipeline"


# %% Something to read: ten records, a minute apart, the last one a minute ago.
now = datetime.now(UTC)
source = spark.range(10).select(
    "id", (f.lit(now) - f.make_interval(mins=f.lit(10) - f.col("id"))).alias("updated_at")
)


# %% The short way: a run for the length of a block. If it raises, the run is FAILED, and the next one begins
# where this one began.
with tracker.run(Table.WOS, "job_001") as run:
    changed = run.window.filter(source, "updated_at")
    run.records_processed = changed.count()
    print(f"first run: {run.records_processed} records up to {run.window.end:%H:%M:%S}")


# %% The three steps, where a job is spread over several cells. The window is frozen when the run starts:
# what was read is what is closed, however long it takes.
record = tracker.start_pipeline_run(Table.WOS, "job_002")
start, end = tracker.get_delta_window(Table.WOS)
rows = source.filter((f.col("updated_at") > f.lit(start)) & (f.col("updated_at") <= f.lit(end))).count()
tracker.finalize_pipeline_run(record, "SUCCESS", records_processed=rows)
print(f"second run: {rows} records")


# %% A function that is given its run.
@tracker.tracked(Table.WOS)
def nightly(run, message):
    if run.window.end - run.window.start < timedelta(hours=1):
        run.skip("too early")
    print(message)


nightly("third run: skipped, its window is left to the next")


# %% A correction by hand, with a reason, and who read what.
tracker.correct(Table.WOS, now - timedelta(minutes=6), "five records were wrong")
with tracker.run(Table.WOS, "job_003") as run:
    run.records_processed = run.window.filter(source, "updated_at").count()
for entry in tracker.lineage(Table.WOS):
    print(entry.jobs, entry.status, entry.records_processed)

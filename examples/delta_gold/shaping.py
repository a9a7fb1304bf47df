"""What of the changes goes into the gold layer."""

from pyspark.sql import functions as f


def build(changes):
    """Changes of the upstreams, by name, to rows of the targets, by name.

    A frame holds one row for each key that changed: its columns as they are now, and beside them
    `_tidegate_change` (`upsert` or `delete`), `_tidegate_version` and `_tidegate_committed_at`. An upstream
    with nothing new is not there.
    """
    made = {}
    if "silver.orders" in changes:
        orders = changes["silver.orders"]
        made["orders"] = orders.withColumn("amount", f.round("amount", 2))
    if "silver.customers" in changes:
        customers = changes["silver.customers"]
        made["customers"] = customers.withColumn("email", f.sha2("email", 256))
        arrived = customers.filter(f.col("_tidegate_change") == "upsert")
        made["signups"] = arrived.groupBy("country").agg(f.count("*").alias("customers"))
    return made

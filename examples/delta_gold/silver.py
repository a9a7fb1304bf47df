"""A silver layer to try it with: `python silver.py` writes it, `python silver.py again` changes it."""

import sys

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

FEED = {"delta.enableChangeDataFeed": "true"}

if sys.argv[1:] == ["again"]:
    orders = DeltaTable("silver/orders")
    orders.update(updates={"amount": "amount + 1"}, predicate="id = 1")
    orders.delete("id = 2")
    write_deltalake("silver/orders", pa.table({"id": [4], "customer": [1], "amount": [4.0]}), mode="append")
else:
    orders = pa.table({"id": [1, 2, 3], "customer": [1, 1, 2], "amount": [1.0, 2.0, 3.0]})
    customers = pa.table({"id": [1, 2], "email": ["a@example.com", "b@example.com"], "country": ["DE", "PL"]})
    write_deltalake("silver/orders", orders, configuration=FEED)
    write_deltalake("silver/customers", customers, configuration=FEED)

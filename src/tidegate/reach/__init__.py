"""How a database server is reached, whoever asks: sources, targets and stores, in the driver and in tasks.

A `Login` says it all and can be pickled. The drivers get it through one function each, so that TLS, tunnels
and passwords mean the same on every path: `reach.mysql` for PyMySQL, `reach.libpq` for everything that speaks
to PostgreSQL.
"""

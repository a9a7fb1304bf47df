"""A stand-in for Amazon Redshift, for tests and for trying a pipeline without a cluster.

It speaks the PostgreSQL wire protocol in front of a real PostgreSQL, so that the real `redshift_connector`
works with it, and runs `COPY … FORMAT AS PARQUET` from a real S3 server in the client's own session and
transaction. What Redshift does otherwise than PostgreSQL, it does as Redshift: see `sql` for statements,
`copying` for COPY and `catalog` for views.

What it does not imitate: texts that are equal although one ends in more blanks, how fast anything is,
slices, where rows lie (options of distribution and sort order are checked, and their columns cannot be
dropped), compressed tables, workload management, SERIALIZABLE isolation and its errors (a transaction has a
snapshot, as databases with snapshot isolation have), SUPER, geometry and sketches, COPY from anything but
Parquet and its limit for the size of a row, UNLOAD, Spectrum, stored procedures, users and IAM (there is one
user, and a role is believed), encryption of connections, names of more than 63 bytes in errors and in the
headings of results (PostgreSQL has shorter ones for them), and functions that Redshift has and PostgreSQL
has not, but for GETDATE. A statement that it lets through may still fail on Redshift.
"""

from tidegate.testing.redshift.server import Backend, Fault, RedshiftLocal

__all__ = ["Backend", "Fault", "RedshiftLocal"]

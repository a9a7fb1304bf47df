"""Words that a target's SQL keeps for itself: as names they have to be quoted, or changed."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# PostgreSQL 18, appendix C "SQL Key Words": what is reserved, and what is reserved unless it names a function
# or a type. A server tells the same: SELECT word FROM pg_get_keywords() WHERE catcode IN ('R', 'T').
POSTGRESQL = _words(
    """
    all analyse analyze and any array as asc asymmetric authorization binary both case cast check collate
    collation column concurrently constraint create cross current_catalog current_date current_role
    current_schema current_time current_timestamp current_user default deferrable desc distinct do else end
    except false fetch for foreign freeze from full grant group having ilike in initially inner intersect into
    is isnull join lateral leading left like limit localtime localtimestamp natural not notnull null offset on
    only or order outer overlaps placing primary references returning right select session_user similar some
    symmetric system_user table tablesample then to trailing true union unique user using variadic verbose
    when where window with
    """
)

# DuckDB 1.5.5: SELECT keyword_name FROM duckdb_keywords()
# WHERE keyword_category IN ('reserved', 'type_function').
DUCKDB = _words(
    """
    all analyse analyze and anti any array as asc asof asymmetric at authorization binary both by case cast
    check collate collation column columns concurrently constraint create cross default deferrable desc
    describe distinct do else end except false fetch for foreign freeze from full generated glob group having
    ilike in initially inner intersect into is isnull join lambda lateral leading left like limit map natural
    not notnull null offset on only or order outer overlaps pivot pivot_longer pivot_wider placing positional
    primary qualify references returning right select semi show similar some struct summarize symmetric table
    tablesample then to trailing true try_cast union unique unpack unpivot using variadic verbose when where
    window with
    """
)

# Amazon Redshift Database Developer Guide, "Reserved words" (docs.aws.amazon.com/redshift/latest/dg/
# r_pg_keywords.html), read in 2026.
REDSHIFT = _words(
    """
    aes128 aes256 all allowoverwrite analyse analyze and any array as asc authorization az64 backup between
    binary blanksasnull both bytedict bzip2 case cast check collate column constraint create credentials cross
    current_date current_time current_timestamp current_user current_user_id default deferrable deflate defrag
    delta delta32k desc disable distinct do else emptyasnull enable encode encrypt encryption end except
    explicit false for foreign freeze from full globaldict256 globaldict64k grant group gzip having identity
    ignore ilike in initially inner intersect interval into is isnull join leading left like limit localtime
    localtimestamp lun luns lzo lzop minus mostly16 mostly32 mostly8 natural new not notnull null nulls off
    offline offset oid old on only open or order outer overlaps parallel partition percent permissions pivot
    placing primary raw readratio recover references rejectlog resort respect restore right select
    session_user similar snapshot some sysdate system table tag tdes text255 text32k then timestamp to top
    trailing true truncatecolumns union unique unnest unpivot user using verbose wallet when where with
    without
    """
)

# Spark 4.2 with spark.sql.ansi.enforceReservedKeywords: SELECT keyword FROM sql_keywords() WHERE reserved.
SPARK = _words(
    """
    all and any as authorization both call case cast check collate collation collations column constraint
    create cross current_date current_path current_schema current_time current_timestamp current_user distinct
    else end escape except execute false fetch filter for foreign from full grant group having in inner
    intersect into is join lateral leading left natural not null offset on only or order outer overlaps
    primary recursive references right select session_user some sql table then time to trailing union unique
    unknown user using when where with within
    """
)

# PostgreSQL, "System Columns": no quoting lets a table have columns of these names.
POSTGRESQL_COLUMNS = _words("tableoid xmin cmin xmax cmax ctid")

# Redshift, "Names and identifiers": the same, and one that PostgreSQL has given up.
REDSHIFT_COLUMNS = POSTGRESQL_COLUMNS | {"oid"}

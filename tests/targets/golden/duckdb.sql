-- a table of every kind
CREATE TABLE "s"."t" ("bool" BOOLEAN,
    "int8" TINYINT,
    "int16" SMALLINT,
    "int32" INTEGER,
    "int64" BIGINT,
    "uint8" UTINYINT,
    "uint16" USMALLINT,
    "uint32" UINTEGER,
    "uint64" UBIGINT,
    "float32" FLOAT,
    "float64" DOUBLE,
    "decimal" DECIMAL(12,2),
    "text" VARCHAR,
    "bytes" BLOB,
    "date" DATE,
    "time" TIME,
    "timestamp" TIMESTAMP,
    "instant" TIMESTAMP WITH TIME ZONE,
    "json" JSON,
    "uuid" UUID);

-- a table to merge into
CREATE TABLE "s"."t" ("id" INTEGER NOT NULL,
    "at" TIMESTAMP,
    "price" DECIMAL(9,2),
    "gone" VARCHAR,
    "_tidegate_run" BIGINT);

-- the same, when the source has gained and lost columns, and widened some
-- add columns more, most, _tidegate_run to t, widen id of t from INTEGER to BIGINT, widen price of t from DECIMAL(9,2) to DECIMAL(12,4)
ALTER TABLE "s"."t" ADD COLUMN "more" JSON;
ALTER TABLE "s"."t" ADD COLUMN "most" UUID;
ALTER TABLE "s"."t" ADD COLUMN "_tidegate_run" BIGINT;
ALTER TABLE "s"."t" ALTER COLUMN "id" TYPE BIGINT;
ALTER TABLE "s"."t" ALTER COLUMN "price" TYPE DECIMAL(12,4);

-- a table of odd names
CREATE TABLE "s"."t" ("id" VARCHAR NOT NULL,
    "select" VARCHAR,
    "Name" VARCHAR,
    "name_82a3537f" VARCHAR,
    "with space" VARCHAR,
    "a ""quote""" VARCHAR,
    "xmin" VARCHAR,
    "_tidegate_run_" VARCHAR,
    "éééééééééééééééééééééééééééééééééééééééé" VARCHAR,
    "2nd" VARCHAR,
    "_tidegate_run" BIGINT);

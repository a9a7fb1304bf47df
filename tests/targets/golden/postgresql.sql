-- a table of every kind
CREATE TABLE "s"."t" ("bool" boolean,
    "int8" smallint,
    "int16" smallint,
    "int32" integer,
    "int64" bigint,
    "uint8" smallint,
    "uint16" integer,
    "uint32" bigint,
    "uint64" numeric(20,0),
    "float32" real,
    "float64" double precision,
    "decimal" numeric(12,2),
    "text" text,
    "bytes" bytea,
    "date" date,
    "time" time without time zone,
    "timestamp" timestamp without time zone,
    "instant" timestamp with time zone,
    "json" json,
    "uuid" uuid);

-- a table to merge into
CREATE TABLE "s"."t" ("id" integer NOT NULL,
    "at" timestamp without time zone,
    "price" numeric(9,2),
    "gone" text,
    "_tidegate_run" bigint, PRIMARY KEY ("id"));

-- the same, when the source has gained and lost columns, and widened some
-- add columns more, most, _tidegate_run to t, widen id of t from integer to bigint, widen price of t from numeric(9,2) to numeric(12,4)
ALTER TABLE "s"."t" ADD COLUMN "more" json;
ALTER TABLE "s"."t" ADD COLUMN "most" uuid;
ALTER TABLE "s"."t" ADD COLUMN "_tidegate_run" bigint;
ALTER TABLE "s"."t" ALTER COLUMN "id" TYPE bigint;
ALTER TABLE "s"."t" ALTER COLUMN "price" TYPE numeric(12,4);

-- a table of odd names
CREATE TABLE "s"."t" ("id" text NOT NULL,
    "select" text,
    "Name" text,
    "name" text,
    "with space" text,
    "a ""quote""" text,
    "xmin_" text,
    "_tidegate_run_" text,
    "ééééééééééééééééééééééééééé_84fe2e03" text,
    "2nd" text,
    "_tidegate_run" bigint, PRIMARY KEY ("id"));

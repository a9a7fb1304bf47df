-- a table of every kind
CREATE TABLE "s"."t" ("bool" BOOLEAN,
    "int8" SMALLINT,
    "int16" SMALLINT,
    "int32" INTEGER,
    "int64" BIGINT,
    "uint8" SMALLINT,
    "uint16" INTEGER,
    "uint32" BIGINT,
    "uint64" DECIMAL(20,0),
    "float32" REAL,
    "float64" DOUBLE PRECISION,
    "decimal" DECIMAL(12,2),
    "text" VARCHAR(65535),
    "bytes" VARBYTE(16777216),
    "date" DATE,
    "time" TIME,
    "timestamp" TIMESTAMP,
    "instant" TIMESTAMPTZ,
    "json" VARCHAR(65535),
    "uuid" CHAR(36));

-- a table to merge into
CREATE TABLE "s"."t" ("id" INTEGER NOT NULL,
    "at" TIMESTAMP,
    "price" DECIMAL(9,2),
    "gone" VARCHAR(65535),
    "_tidegate_run" BIGINT);

-- the same, when the source has gained and lost columns, and widened some
-- add columns more, most, _tidegate_run to t, widen id of t from INTEGER to BIGINT, widen price of t from DECIMAL(9,2) to DECIMAL(12,4)
ALTER TABLE "s"."t" ADD COLUMN "more" VARCHAR(65535);
ALTER TABLE "s"."t" ADD COLUMN "most" CHAR(36);
ALTER TABLE "s"."t" ADD COLUMN "_tidegate_run" BIGINT;
ALTER TABLE "s"."t" ADD COLUMN "_tidegate_a56145270ce6" BIGINT;
UPDATE "s"."t" SET "_tidegate_a56145270ce6" = CAST("id" AS BIGINT);
ALTER TABLE "s"."t" DROP COLUMN "id";
ALTER TABLE "s"."t" RENAME COLUMN "_tidegate_a56145270ce6" TO "id";
ALTER TABLE "s"."t" ADD COLUMN "_tidegate_683b531f41ec" DECIMAL(12,4);
UPDATE "s"."t" SET "_tidegate_683b531f41ec" = CAST("price" AS DECIMAL(12,4));
ALTER TABLE "s"."t" DROP COLUMN "price";
ALTER TABLE "s"."t" RENAME COLUMN "_tidegate_683b531f41ec" TO "price";

-- a table of odd names
CREATE TABLE "s"."t" ("id" VARCHAR(65535) NOT NULL,
    "select_" VARCHAR(65535),
    "name_dcd1d522" VARCHAR(65535),
    "name" VARCHAR(65535),
    "with_space" VARCHAR(65535),
    "a__quote_" VARCHAR(65535),
    "xmin_" VARCHAR(65535),
    "_tidegate_run_" VARCHAR(65535),
    "éééééééééééééééééééééééééééééééééééééééé" VARCHAR(65535),
    "_2nd" VARCHAR(65535),
    "_tidegate_run" BIGINT);

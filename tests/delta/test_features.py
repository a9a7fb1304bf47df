"""Whatever an upstream went through between two versions, the target has what it had at the recorded one."""

from __future__ import annotations

import pytest

from tests.delta.conftest import FEED, PIPELINE, order
from tests.delta.test_running import Gold, gold
from tidegate.core.errors import SourceError
from tidegate.delta.changes import quoted

__all__ = ["gold"]

VECTORS = "delta.enableDeletionVectors = true"
MAPPED = "delta.columnMapping.mode = 'name'"
FED = "delta.enableChangeDataFeed = true"


def created(gold: Gold, columns: str, *properties: str, partitioned: str = "", name: str = "orders") -> None:
    by = f"PARTITIONED BY ({partitioned})" if partitioned else ""
    listed = ", ".join(properties)
    gold.sql(f"CREATE TABLE {{table}} ({columns}) USING delta {by} TBLPROPERTIES ({listed})", name)


def agree(gold: Gold) -> None:
    """As Spark reads both: not every reader knows every feature."""
    [(_, version)] = gold.plans().load_checkpoints().items()
    there = gold.spark.read.format("delta").load(str(gold.root / "gold/orders"))
    wanted = gold.spark.read.format("delta").option("versionAsOf", version).load(str(gold.place()))
    assert sorted(there.columns) == sorted(wanted.columns)
    names = [quoted(name) for name in wanted.columns]
    rows = [sorted(map(repr, frame.select(*names).collect())) for frame in (there, wanted)]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("feed", [True, False], ids=["feed", "diff"])
def test_deletion_vectors_and_partitions(gold: Gold, feed: bool) -> None:  # noqa: FBT001
    properties = [VECTORS, f"delta.enableChangeDataFeed = {str(feed).lower()}"]
    created(gold, "id BIGINT, state STRING, day DATE", *properties, partitioned="day")
    gold.sql("INSERT INTO {table} SELECT id, 'new', DATE'2030-01-01' + int(id % 3) FROM range(12)")
    gold.sql("INSERT INTO {table} VALUES (NULL, 'no key', NULL)")
    gold.completed()
    gold.sql("DELETE FROM {table} WHERE id IN (1, 2) OR id IS NULL OR day = DATE'2030-01-01'")
    gold.sql("UPDATE {table} SET state = 'paid', id = if(id = 5, 100, id), day = NULL WHERE id IN (4, 5)")
    gold.sql("INSERT INTO {table} VALUES (1, 'again', NULL), (NULL, 'no key again', NULL)")
    gold.completed()
    agree(gold)


def test_optimize_overwrite_and_restore_in_one_range(gold: Gold) -> None:
    created(gold, "id BIGINT, state STRING", VECTORS, FED)
    gold.sql("INSERT INTO {table} SELECT id, 'new' FROM range(6)")
    gold.sql("INSERT INTO {table} SELECT id + 6, 'new' FROM range(6)")
    gold.completed()
    gold.sql("DELETE FROM {table} WHERE id IN (2, 8)")
    gold.sql("OPTIMIZE {table}")
    gold.sql("INSERT OVERWRITE {table} SELECT id, 'over' FROM range(4)")
    gold.sql("RESTORE TABLE {table} TO VERSION AS OF 3")
    gold.sql("INSERT INTO {table} VALUES (50, 'last')")
    gold.completed()
    agree(gold)


def test_a_feed_that_is_enabled_later(gold: Gold) -> None:
    gold.append([order(number) for number in range(5)], feed=False)
    gold.completed()
    gold.table().delete("id = 1")
    gold.table().alter.set_table_properties(FEED)
    gold.table().update(updates={"state": "'paid'"}, predicate="id = 2")
    gold.append([order(7)])
    gold.completed()
    gold.agree()


def test_a_renamed_column_stops_the_upstream_until_it_is_read_whole_again(gold: Gold) -> None:
    created(gold, "id BIGINT, state STRING, note STRING", MAPPED, FED)
    gold.sql("INSERT INTO {table} VALUES (1, 'new', 'a'), (2, 'new', 'b')")
    gold.completed()
    gold.sql("UPDATE {table} SET state = 'paid' WHERE id = 1")
    gold.sql("ALTER TABLE {table} RENAME COLUMN state TO phase")
    gold.sql("INSERT INTO {table} VALUES (3, 'new', 'c')")
    assert gold.completed().upstreams[0].end_version == 2
    with pytest.raises(SourceError, match="`state` is called `phase` now"):
        gold.run()
    gold.plans().prepare(rebaseline=["silver.orders"])
    gold.completed()
    agree(gold)


def test_a_dropped_column_stays_in_the_target_and_is_empty(gold: Gold) -> None:
    created(gold, "id BIGINT NOT NULL, state STRING NOT NULL, note STRING", MAPPED, FED)
    gold.sql("INSERT INTO {table} VALUES (1, 'new', 'a'), (2, 'new', 'b')")
    gold.completed()
    gold.sql("ALTER TABLE {table} ALTER COLUMN state DROP NOT NULL")
    gold.sql("ALTER TABLE {table} DROP COLUMN note")
    gold.sql("INSERT INTO {table} VALUES (3, NULL)")
    assert gold.completed().upstreams[0].end_version == 2  # a feed cannot be read across it
    gold.completed()
    there = gold.spark.read.format("delta").load(str(gold.root / "gold/orders")).collect()
    assert sorted((row.id, row.state, row.note) for row in there) == [
        (1, "new", "a"),
        (2, "new", "b"),
        (3, None, None),
    ]


def test_vectors_that_vacuum_took_are_found_before_they_are_read(gold: Gold) -> None:
    created(gold, "id BIGINT, state STRING", VECTORS, FED)
    gold.sql("INSERT INTO {table} SELECT id, 'new' FROM range(9)")
    gold.completed()
    gold.sql("DELETE FROM {table} WHERE id = 1")
    [vector] = gold.place().rglob("deletion_vector_*.bin")
    vector.unlink()
    with pytest.raises(SourceError, match=f"VACUUM has taken .*{vector.name}"):
        gold.plans().prepare()


def test_a_clone_is_followed_even_where_it_speaks_of_files_of_another_table(gold: Gold) -> None:
    created(gold, "id BIGINT, state STRING", FED, VECTORS, name="base")
    gold.sql("INSERT INTO {table} SELECT id, 'new' FROM range(6)", "base")
    gold.sql(f"CREATE TABLE {{table}} SHALLOW CLONE delta.`{gold.place('base')}`")
    gold.completed()
    gold.sql("DELETE FROM {table}")
    gold.sql("INSERT INTO {table} VALUES (9, 'own')")
    gold.completed()
    agree(gold)


def test_columns_that_only_numbers_tell_apart_have_their_names_in_the_target_too(gold: Gold) -> None:
    gold.configure(PIPELINE.replace("[id]", '["the id"]'))
    created(gold, "`the id` BIGINT, `a.b` STRING, part STRUCT<`c,d`: INT>", MAPPED, FED)
    gold.sql("INSERT INTO {table} VALUES (1, 'a', NULL), (2, 'b', named_struct('c,d', 3))")
    gold.completed()
    gold.sql("UPDATE {table} SET `a.b` = 'z', `the id` = 5 WHERE `the id` = 1")
    gold.completed()
    agree(gold)


def test_a_text_may_be_longer_once_its_limit_is_lifted(gold: Gold) -> None:
    created(gold, "id BIGINT, state VARCHAR(3)", FED)
    gold.sql("INSERT INTO {table} VALUES (1, 'new')")
    gold.completed()
    gold.sql("ALTER TABLE {table} ALTER COLUMN state TYPE STRING")
    gold.sql("INSERT INTO {table} VALUES (2, 'no longer new')")
    gold.completed()
    agree(gold)


def test_all_rows_of_a_table_without_a_feed_count_even_if_they_are_alike(gold: Gold) -> None:
    gold.append([order(1)], feed=False)
    gold.completed()
    gold.append([order(2), order(2)])
    failed = gold.run().upstreams[0]
    assert failed.error_message == "the keys do not tell rows apart: id=2"


def test_a_history_of_a_table_without_a_feed_tells_updates_from_inserts(gold: Gold) -> None:
    gold.configure(PIPELINE + "write_mode: history\nfirst_run: {version: 1}\n")
    gold.append([order(1), order(2), order(3)], feed=False)
    gold.table().update(updates={"state": "'paid'"}, predicate="id = 1")
    gold.table().delete("id = 2")
    gold.append([order(4)])
    gold.completed()
    assert [(row["id"], row["_tidegate_change"], row["state"]) for row in gold.told()] == [
        (1, "update_postimage", "paid"),
        (1, "update_preimage", "new"),
        (2, "delete", "new"),
        (4, "insert", "new"),
    ]


def test_a_column_that_was_dropped_and_comes_again_stops_the_upstream(gold: Gold) -> None:
    """The target has what the first of that name held, and no row of the upstream does."""
    created(gold, "id BIGINT, note STRING", MAPPED, FED)
    gold.sql("INSERT INTO {table} VALUES (1, 'a')")
    gold.completed()
    gold.sql("ALTER TABLE {table} DROP COLUMN note")
    gold.sql("ALTER TABLE {table} ADD COLUMN note STRING")
    assert gold.completed().upstreams[0].end_version == 2
    with pytest.raises(SourceError, match="`note` is there again, as another column"):
        gold.run()
    gold.plans().prepare(rebaseline=["silver.orders"])
    gold.completed()
    agree(gold)
    gold.sql("INSERT INTO {table} VALUES (2, 'b')")
    gold.completed()
    agree(gold)

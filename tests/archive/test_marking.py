"""Setting the `archived` column goes on where it was interrupted."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.archive.conftest import LONG_AGO, Site
from tidegate.archive.library import Unwatched, open_tools
from tidegate.archive.marking import Marked, Marking
from tidegate.core.errors import UsageError


class Impatient(Unwatched):
    """Wants to stop at the third safe point."""

    points = 0

    def check(self) -> None:
        self.points += 1
        if self.points == 3:
            raise KeyboardInterrupt


def _marked(site: Site, watching: Unwatched, batch: int = 1_000) -> Marked:
    with open_tools(site.config, command="a test") as tools:
        return Marking(tools, watching, batch).run()


def _left(site: Site) -> int:
    [(count,)] = site.server.execute("SELECT COUNT(*) FROM files WHERE NOT archived")
    return int(count)


def test_what_was_interrupted_goes_on_behind_the_shards_that_are_done(site: Site) -> None:
    site.configure(packer={"n_bits": 3})
    site.add(80)
    site.cycle()
    with pytest.raises(KeyboardInterrupt):
        _marked(site, Impatient())
    left = _left(site)
    assert 0 < left < 80

    marked = _marked(site, Unwatched())

    assert marked.rows == left
    assert marked.files < 80
    assert _left(site) == 0


def test_no_statement_sets_more_rows_than_a_batch(site: Site) -> None:
    site.server.execute("CREATE TABLE statements (changed bigint)")
    site.server.execute(
        "CREATE FUNCTION counted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "INSERT INTO statements SELECT count(*) FROM changes; RETURN NULL; END $$"
    )
    site.server.execute(
        "CREATE TRIGGER counting AFTER UPDATE ON files REFERENCING NEW TABLE AS changes "
        "FOR EACH STATEMENT EXECUTE FUNCTION counted()"
    )
    site.add(40)
    site.cycle()
    assert site.server.execute("SELECT COUNT(*) FROM statements") == [(0,)]  # nobody else writes it
    assert _marked(site, Unwatched(), batch=7).rows == 40
    [(most, total)] = site.server.execute("SELECT max(changed), sum(changed) FROM statements")
    assert (most, total) == (7, 40)


def _not_marked(site: Site) -> set[str]:
    return {uid for (uid,) in site.server.execute("SELECT uid FROM files WHERE NOT archived")}


def test_in_a_table_of_partitions_no_row_is_set_that_lies_at_the_same_place_of_another(site: Site) -> None:
    site.server.execute("DROP TABLE files")
    site.server.execute(
        "CREATE TABLE files (uid text, created_at timestamptz, file_location text, "
        "archived boolean NOT NULL DEFAULT false, PRIMARY KEY (uid, created_at)) "
        "PARTITION BY RANGE (created_at)"
    )
    for name, low, high in (("old", "MINVALUE", "'2024-12-01'"), ("young", "'2024-12-01'", "MAXVALUE")):
        site.server.execute(f"CREATE TABLE {name} PARTITION OF files FOR VALUES FROM ({low}) TO ({high})")
    site.add(5)
    site.cycle()
    site.demand_complete()
    young = site.add(5, at=datetime.now(UTC), prefix="young")

    assert _marked(site, Unwatched()).rows == 5

    assert _not_marked(site) == set(young)


def test_a_row_that_names_another_file_since_then_is_not_marked(site: Site) -> None:
    """Where a file was only moved its row says so: it has the same date."""
    moved, replaced, _ = site.add(3)
    site.cycle()
    change = "UPDATE files SET file_location = '/elsewhere', created_at = %s WHERE uid = %s"
    site.server.execute(change, [LONG_AGO, moved])
    site.server.execute(change, [datetime.now(UTC), replaced])

    assert _marked(site, Unwatched()).rows == 2

    assert _not_marked(site) == {replaced}


def test_rows_are_set_whatever_table_and_columns_are_called(site: Site) -> None:
    site.add(3)
    site.server.execute('ALTER TABLE files RENAME COLUMN uid TO "U%id"')
    site.server.execute('ALTER TABLE files RENAME COLUMN archived TO "100% {done}"')
    site.server.execute('ALTER TABLE files RENAME TO "Fi%les"')
    site.configure(database={"table_name": "Fi%les", "uid_column": "U%id", "archived_column": "100% {done}"})
    site.cycle()
    assert _marked(site, Unwatched()).rows == 3


def test_a_view_has_no_rows_to_set_and_the_table_behind_it_has(site: Site) -> None:
    site.server.execute("CREATE VIEW listed AS SELECT * FROM files")
    site.configure(database={"table_name": "listed"})
    site.add(3)
    site.cycle()
    with pytest.raises(UsageError, match="no table of its own"):
        _marked(site, Unwatched())
    site.configure(database={"table_name": "files"})
    assert _marked(site, Unwatched()).rows == 3

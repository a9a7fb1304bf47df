"""A log that others write to while it is read."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.delta.conftest import Lake, order
from tidegate.delta.log import TableLog
from tidegate.delta.places import LocalFolder


def test_a_commit_that_was_made_while_the_folder_was_listed_is_no_gap(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        lake.append([order(number)])
    listed = LocalFolder.names

    def without_the_second(folder: LocalFolder, path: str) -> list[str]:
        return [name for name in listed(folder, path) if name != f"{1:020}.json"]

    monkeypatch.setattr(LocalFolder, "names", without_the_second)
    assert TableLog.at(str(lake.place())).gap(-1, 2) is None


def test_a_checkpoint_whose_parts_are_still_being_written_says_nothing_yet(lake: Lake) -> None:
    for number in range(3):
        lake.append([order(number)])
    lake.table().create_checkpoint()
    folder = lake.place() / "_delta_log"
    whole = folder / f"{2:020}.checkpoint.parquet"
    rows = parquet.read_table(whole)
    others = [not (said and said["id"]) for said in rows["metaData"].to_pylist()]
    parquet.write_table(rows.filter(pa.array(others)), folder / f"{2:020}.checkpoint.{1:010}.{2:010}.parquet")
    whole.unlink()
    assert TableLog.at(str(lake.place())).metadata(2).columns == (("id", '"long"'), ("state", '"string"'))

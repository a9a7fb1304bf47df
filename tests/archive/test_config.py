from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tidegate.archive.config import read_config
from tidegate.core.errors import ConfigError

OLDER = """\
# watermark-config.yaml
database:
  url: "postgresql://user:pass@host/db"
  table_name: "files"
  uid_column: "uid"
  created_at_column: "created_at"
  location_column: "file_location"
  lag_days: 7
  page_size: 10000

packer:
  output_dir: "/mnt/des/output"
  max_shard_size: 1000000000
  n_bits: 8

watermark:
  config_db_url: "postgresql://user:pass@host/db"
  default_archived_until: "2024-11-01T00:00:00Z"
"""


def _read(folder: Path, text: str, **environ: str):  # type: ignore[no-untyped-def]
    path = folder / "watermark-config.yaml"
    path.write_text(text, encoding="utf-8")
    return read_config(path, environ)


def test_the_older_file_loads_as_it_is(tmp_path: Path) -> None:
    config = _read(tmp_path, OLDER)
    assert config.files_login == config.mark_login
    assert config.files_login.where == "host:5432/db"
    assert config.files_login.password == "pass"
    assert config.database.page_size == 10_000
    assert config.packer.max_shard_size == 1_000_000_000
    assert config.watermark.default_archived_until == datetime(2024, 11, 1, tzinfo=UTC)
    assert "pass" in set(config.secrets())
    assert "pass@" not in repr(config)


def test_variables_are_filled_in_and_paths_begin_at_the_file(tmp_path: Path) -> None:
    text = OLDER.replace("user:pass@", "user:${PG_PASSWORD}@").replace("/mnt/des/output", "shards")
    config = _read(tmp_path, text, PG_PASSWORD="se%20cret")
    assert config.files_login.password == "se cret"
    (tmp_path / "secret").write_text("from-a-file\n")
    kept = _read(tmp_path, text.replace("${PG_PASSWORD}", "${file:secret}"))
    assert kept.files_login.password == "from-a-file"
    assert config.packer.output_dir == str(tmp_path / "shards")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("n_bits: 8", "nbits: 8", "did you mean `n_bits`"),
        ("n_bits: 8", "n_bits: 17", "at most 16"),
        ("postgresql://user:pass@host/db", "mysql://host/db", "begins with postgresql://"),
        ("user:pass@host/db", "user:pass@host", "such as postgresql://user:password@host/database"),
        ('  table_name: "files"\n', "", "`table_name` is missing"),
        ("lag_days: 7", "lag_days: -1", "at least 0"),
        ('"2024-11-01T00:00:00Z"', "yesterday", "expected a date and time"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, old: str, new: str, told: str) -> None:
    with pytest.raises(ConfigError, match=r"watermark-config\.yaml") as caught:
        _read(tmp_path, OLDER.replace(old, new))
    assert told in str(caught.value)
    assert "pass@" not in str(caught.value)

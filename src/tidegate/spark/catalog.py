"""What a catalog knows of Delta tables: where they lie. Spark is started for the first that is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from tidegate.core.errors import SourceError
from tidegate.spark.delta import demand_delta
from tidegate.spark.session import LazySession

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession


@dataclass(frozen=True)
class SparkCatalog:
    """The catalogs of a session, asked once for each table."""

    session: LazySession
    _places: dict[str, str] = field(default_factory=dict, repr=False)

    def place(self, table: str) -> str:
        """Where a table lies."""
        if table not in self._places:
            detail = self._asked(f"DESCRIBE DETAIL {_quoted(table)}", table)[0]
            self._places[table] = _place(detail["location"])
        return self._places[table]

    def tables(self, schema: str) -> dict[str, str]:
        """The Delta tables of a schema, by their names, with where they lie."""
        rows = self._asked(f"SHOW TABLE EXTENDED IN {_quoted(schema)} LIKE '*'", schema)
        told = {row["tableName"]: _facts(row["information"]) for row in rows if not row["isTemporary"]}
        return {
            name: _place(facts["Location"])
            for name, facts in sorted(told.items())
            if facts.get("Provider", "").casefold() == "delta" and "Location" in facts
        }

    def _asked(self, statement: str, where: str) -> list[Row]:
        from pyspark.errors import PySparkException

        try:
            return self._running().sql(statement).collect()  # a row for each table of a schema
        except PySparkException as error:
            lost = self.session.lost(error)
            if lost is not None:
                raise lost from error
            said = next((line for line in str(error).splitlines() if line.strip()), "")
            raise SourceError(f"the catalog does not tell where it lies: {said}", where=where) from error

    def _running(self) -> SparkSession:
        running = self.session.get()
        demand_delta(running)
        return running


def _facts(text: str) -> dict[str, str]:
    """`Name: value`, line by line."""
    pairs: list[Any] = [line.split(": ", 1) for line in text.splitlines() if ": " in line]
    return dict(pairs)


def _quoted(name: str) -> str:
    return ".".join("`" + part.replace("`", "``") + "`" for part in name.split("."))


def _place(location: str) -> str:
    """What Spark calls a place, as we do."""
    if location.startswith("file:"):
        return unquote(urlsplit(location).path)
    return f"s3://{location.removeprefix('s3a://')}" if location.startswith("s3a://") else location

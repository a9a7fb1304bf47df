"""The tools that are compared."""

from __future__ import annotations

from bench.contract import Tool
from bench.tools.dlt import Dlt
from bench.tools.ingestr import Ingestr
from bench.tools.spark_jdbc import SparkJdbc
from bench.tools.tidegate import Tidegate, Trusting

TOOLS: dict[str, Tool] = {tool.name: tool for tool in (Tidegate(), Trusting(), SparkJdbc(), Dlt(), Ingestr())}

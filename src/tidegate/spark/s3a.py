"""What Spark needs for its own file system on S3: Hadoop's module, and the parts of AWS's SDK that it calls.

That module asks for the SDK as a whole, which is several hundred megabytes; these parts are thirteen.
"""

from __future__ import annotations

from collections.abc import Iterable

MODULE = "org.apache.hadoop:hadoop-aws"
PACKAGE = f"{MODULE}:3.5.0"
"""Made for the Hadoop that Spark brings."""

_SDK = "software.amazon.awssdk"
_CALLED = ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
PARTS = tuple(f"{_SDK}:{name}:2.35.4" for name in _CALLED)
LEFT_OUT = (
    f"{_SDK}:bundle",
    "org.wildfly.openssl:wildfly-openssl",
    "io.netty:*",
    "org.apache.httpcomponents:*",
    "commons-codec:commons-codec",
    "commons-logging:commons-logging",
    "org.slf4j:slf4j-api",
)
"""The whole of the SDK, what nobody here calls, and what Spark has already, in versions of its own."""


def lacks_parts(packages: Iterable[str]) -> bool:
    """Whether the module is asked for, and nothing of the SDK: then the parts are enough."""
    listed = list(packages)
    return any(item.startswith(f"{MODULE}:") for item in listed) and not any(_SDK in item for item in listed)

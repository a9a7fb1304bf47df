"""Sessions on a Spark Connect server: reached before anything is asked of it, and renewed when it forgets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from tidegate.core.errors import ConfigError, ConnectError, UsageError
from tidegate.spark.reaching import demand_reachable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client import SparkConnectClient
    from pyspark.sql.connect.session import SparkSession as ConnectSession

_DEFAULT_PORT = 15002
_SIGNS = ("StatusCode.UNAVAILABLE", "[INVALID_HANDLE.", "[RESPONSE_ALREADY_RECEIVED]")
"""What errors say of a server that is gone, or is back and has forgotten what it was asked before."""


def connect(address: str, conf: Mapping[str, str]) -> SparkSession:
    """A session on the server, or the one this process already has.

    It does not switch all of PySpark to Connect, as `SparkSession.builder.remote` does, so that it can live
    beside a session of another kind.
    """
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql.connect.session import SparkSession as ConnectSession
    except ImportError as error:
        raise UsageError("Spark Connect is not installed", hint="pip install 'tidegate[connect]'") from error
    demand_server(address)
    try:
        session = _session(ConnectSession.builder.remote(address))
        version = session.version
    except PySparkException as error:
        _demand_still_there(address)  # it may have gone away only now
        raise ConnectError(
            f"the Spark Connect server refuses the session: {_said(error)}",
            where=endpoint(address),
            hint="check `spark.remote` in config/connections.yml, its token and its TLS setting",
        ) from error
    _demand_version(version, address)
    _configure(session, conf, address)
    return cast("SparkSession", session)


def _session(builder: ConnectSession.Builder) -> ConnectSession:
    """The session of this process, unless the server has forgotten it: then a new one."""
    session = builder.getOrCreate()
    _be_brief(session.client)
    if is_open(session):
        return session
    session.stop()
    renewed = builder.create()
    _be_brief(renewed.client)
    return renewed


def is_open(session: SparkSession | ConnectSession) -> bool:
    """Whether the server still knows the session: it forgets idle ones, and all of them when it restarts."""
    from pyspark.errors import PySparkException

    if cast("ConnectSession", session).is_stopped:
        return False
    try:
        return session.conf.get("spark.sql.session.timeZone") is not None
    except PySparkException:
        return False


def renewed(session: SparkSession, address: str, conf: Mapping[str, str]) -> SparkSession:
    """The session as it was begun, or another one where the server has forgotten it."""
    _demand_still_there(address)  # a session would ask a server that is gone for a minute
    if is_open(session):
        return session
    try:
        return connect(address, conf)
    except ConnectError:
        _demand_still_there(address)  # it may have gone away only now
        raise


def gone(error: BaseException, address: str) -> ConnectError | None:
    """What there is to say of `error` if the server went away; None if it is still there."""
    if any(sign in str(error) for sign in _SIGNS):
        return _went_away(address)
    try:
        _demand_still_there(address)
    except ConnectError as lost:
        return lost
    return None


def _demand_still_there(address: str) -> None:
    """Raise `ConnectError` if nothing answers any more where a session was begun."""
    try:
        demand_server(address)
    except ConnectError as error:
        raise _went_away(address) from error


def _went_away(address: str) -> ConnectError:
    return ConnectError(
        "the Spark Connect server went away",
        where=endpoint(address),
        hint="once it is back, run it again: it goes on from the last proved chunk",
    )


def demand_server(address: str) -> None:
    """Raise `ConnectError` if nothing answers there: PySpark itself would go on trying for ten minutes."""
    demand_reachable([endpoint(address)], "the Spark Connect server", "spark.remote")


def endpoint(address: str) -> str:
    """Host and port of `sc://host:port/;token=…`, without what may be secret."""
    place = address.removeprefix("sc://").partition("/")[0]
    host, colon, port = place.rpartition(":")
    return place if colon and port.isdigit() and host else f"{place}:{_DEFAULT_PORT}"


def _be_brief(client: SparkConnectClient) -> None:
    """Give up on a server that has gone away in less than a minute, not in ten: the next run goes on."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    client.set_retry_policies([DefaultPolicy(max_retries=10, max_backoff=2_000)])


def _demand_version(version: str, address: str) -> None:
    import pyspark

    here = pyspark.__version__
    if version.split(".")[:2] != here.split(".")[:2]:
        raise ConnectError(
            f"the Spark Connect server is Spark {version}, and this is PySpark {here}",
            where=endpoint(address),
            hint="tasks run only where both are of the same minor version",
        )


def _configure(session: ConnectSession, conf: Mapping[str, str], address: str) -> None:
    from pyspark.errors import PySparkException

    for key, value in conf.items():
        try:
            session.conf.set(key, value)
        except PySparkException as error:
            lost = gone(error, address)
            if lost is not None:
                raise lost from error
            raise ConfigError(
                f"the Spark Connect server does not let `{key}` be set: {_said(error)}",
                where="spark.conf",
                hint="a server's own settings are made where it is started",
            ) from error


def _said(error: Exception) -> str:
    """What the server has said, or gRPC in its place: its own report begins with the name of a class."""
    text = str(error)
    found = re.search(r'details = "(.+)"', text)
    lines = [found[1]] if found else [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__

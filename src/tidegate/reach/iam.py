"""Tokens instead of passwords: AWS signs a user in, for a quarter of an hour at a time.

A token is good for opening connections while it lasts; those that are open stay open. So it is made when a
connection is opened, by whoever opens it, and kept until two thirds of its time are over: long runs and Spark
tasks always hold a fresh one. What travels to tasks is how to make it, never the token.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tidegate.core import secrecy
from tidegate.core.errors import ConfigError, LoginRefused

LIFE_SECONDS = 900.0
_USED_SECONDS = LIFE_SECONDS * 2 / 3


@dataclass(frozen=True, slots=True)
class Iam:
    """Whose signature to use. What is None is left to the conventions of AWS."""

    region: str | None = None
    profile: str | None = None
    cluster: str | None = None
    """The Redshift cluster to make the token for; one for RDS is signed here, without asking anyone."""
    workgroup: str | None = None
    """The same for Redshift Serverless."""
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Server:
    """What a token is made for."""

    host: str
    port: int
    database: str
    username: str | None


@dataclass(frozen=True, slots=True)
class Credentials:
    username: str | None
    password: str = field(repr=False)


_kept: dict[tuple[Iam, Server], tuple[float, Credentials]] = {}
_turn = threading.Lock()


def credentials(iam: Iam, server: Server, clock: Callable[[], float] = time.monotonic) -> Credentials:
    """A fresh token, or one that has most of its time before it."""
    with _turn:
        kept = _kept.get((iam, server))
        if kept is None or clock() - kept[0] >= _USED_SECONDS:
            kept = _kept[iam, server] = clock(), _made(iam, server)
            secrecy.remember(kept[1].password)
        return kept[1]


def forget() -> None:
    """Let the next connection make a new token."""
    with _turn:
        _kept.clear()


def _made(iam: Iam, server: Server) -> Credentials:
    try:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError as error:
        hint = "pip install 'tidegate[s3]', wherever connections are opened"
        raise ConfigError("IAM tokens need the package boto3, which is not installed", hint=hint) from error
    try:
        session = boto3.Session(
            region_name=iam.region,
            profile_name=iam.profile,
            aws_access_key_id=iam.access_key_id,
            aws_secret_access_key=iam.secret_access_key,
            aws_session_token=iam.session_token,
        )
        return _asked(session, iam, server)
    except (BotoCoreError, ClientError) as error:
        raise LoginRefused(
            f"AWS gives no token for user `{server.username}`: {error}",
            where=f"{server.host}:{server.port}/{server.database}",
            hint="check `iam` of the connection, and the AWS credentials of this machine",
        ) from error


def _asked(session: Any, iam: Iam, server: Server) -> Credentials:
    if iam.workgroup:
        answer = session.client("redshift-serverless").get_credentials(
            workgroupName=iam.workgroup, dbName=server.database, durationSeconds=int(LIFE_SECONDS)
        )
        return Credentials(answer["dbUser"], answer["dbPassword"])
    if iam.cluster:
        answer = session.client("redshift").get_cluster_credentials(
            ClusterIdentifier=iam.cluster,
            DbUser=server.username,
            DbName=server.database,
            DurationSeconds=int(LIFE_SECONDS),
        )
        return Credentials(answer["DbUser"], answer["DbPassword"])
    token = session.client("rds").generate_db_auth_token(
        DBHostname=server.host, Port=server.port, DBUsername=server.username
    )
    return Credentials(server.username, token)

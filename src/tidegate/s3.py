"""S3, or something that speaks its language: where it is, a client for it, and its errors in words.

An `S3Place` is a plain value that travels to Spark's tasks. The client behind it is made when first needed,
once for each process, and shared by its threads.

    with place.asking("s3:GetObject", key, refused=StateError) as client:
        answer = client.get_object(Bucket=place.bucket, Key=key)

What is sent carries a checksum that the server checks (CRC32, unless the caller or AWS's own configuration
wants another), and what comes back is checked against the one that the server keeps, if it keeps one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tidegate.core.errors import (
    ConfigError,
    ConnectError,
    LoginRefused,
    NotAllowed,
    OutcomeUnknown,
    TidegateError,
)

if TYPE_CHECKING:
    from tidegate.config.connection_models import Bucket

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
CONNECTIONS = 32
"""How many requests one client can have under way without opening a connection for each."""
ATTEMPTS = 3


class Absent(Exception):
    """There is no such object. Not for users: whoever asked knows what it means."""


class Unmet(Exception):
    """The condition of a write does not hold, or another write was under way. Not for users.

    Unless it is `certain`, it is no proof that nothing was written: the answer to an earlier attempt of the
    same write was lost. Read back before concluding.
    """

    def __init__(self, code: str, *, certain: bool) -> None:
        super().__init__(code)
        self.certain = certain


@dataclass(frozen=True, slots=True)
class S3Place:
    """A prefix in a bucket, and how to get there. What is None is left to the conventions of AWS:

    the environment, the shared configuration files, the machine's or the container's role.
    """

    bucket: str
    prefix: str = ""
    region: str | None = None
    endpoint_url: str | None = None
    path_style: bool | None = None
    """`endpoint/bucket/key` and not `bucket.endpoint/key`; by default where an endpoint is named."""
    profile: str | None = None
    role_arn: str | None = None
    external_id: str | None = field(default=None, repr=False)
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, config: Bucket) -> S3Place:
        """The place that an entry of `staging:` or `state:` names."""
        return cls(**{part.name: _plain(getattr(config, part.name)) for part in fields(cls)})

    @classmethod
    def at(cls, url: str) -> S3Place:
        """The place at `s3://bucket/prefix?region=…&endpoint_url=…`. Secrets do not belong in a URL."""
        parts = urlsplit(url)
        if parts.scheme != "s3" or not parts.netloc or "@" in parts.netloc or parts.fragment:
            raise ConfigError("this URL names no bucket", hint="write it like s3://bucket/prefix")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        for name in options:
            if name not in _URL_OPTIONS:
                hint = f"there are {', '.join(_URL_OPTIONS)}; keys come from the environment or a profile"
                raise ConfigError(f"the URL of the bucket has an unknown option `{name}`", hint=hint)
        path_style = _switch(options.pop("path_style", None))
        return cls(parts.netloc, unquote(parts.path.lstrip("/")), path_style=path_style, **options)

    def with_access(self, **access: Any) -> S3Place:
        """The same place, reached as these settings say; a secret may come wrapped."""
        return replace(self, **{name: _plain(value) for name, value in access.items()})

    def __str__(self) -> str:
        return self.url("")

    def key(self, name: str) -> str:
        """The key of what is called `name` under the prefix."""
        folder = self.prefix.strip("/")
        return f"{folder}/{name}" if folder else name

    def url(self, name: str) -> str:
        """Where `name` lies, for people."""
        return f"s3://{self.bucket}/{self.key(name)}"

    def client(self, *, answer_seconds: float = ANSWER_SECONDS) -> Any:
        """The client of this process for places with the same address and login. Threads may share it.

        Its errors are botocore's own: ask through `asking`.
        """
        return _CLIENTS.get(replace(self, bucket="", prefix=""), answer_seconds)

    def get(
        self,
        key: str,
        *,
        refused: type[TidegateError],
        action: str = "s3:GetObject",
        answer_seconds: float = ANSWER_SECONDS,
    ) -> tuple[bytes, str]:
        """A small object, whole, and its ETag. Raises `Absent`."""
        body, answer = self.fetch(key, refused=refused, action=action, answer_seconds=answer_seconds)
        return body, answer["ETag"]

    def fetch(
        self,
        key: str,
        wanted: dict[str, str] | None = None,
        *,
        refused: type[TidegateError],
        action: str = "s3:GetObject",
        answer_seconds: float = ANSWER_SECONDS,
    ) -> tuple[bytes, dict[str, Any]]:
        """An object, or as much of it as is `wanted`, and what else the answer says. Raises `Absent`.

        botocore asks again when there is no answer; we do when the line breaks in the middle of one. Of an
        object without a byte no range can be had: then there is nothing, and no answer.
        """
        for attempt in range(1, ATTEMPTS + 1):
            with self.asking(action, key, refused=refused, answer_seconds=answer_seconds) as client:
                try:
                    answer = client.get_object(Bucket=self.bucket, Key=key, **(wanted or {}))
                except client.exceptions.ClientError as error:
                    if error.response["Error"]["Code"] != "InvalidRange":
                        raise
                    return b"", {}
                try:
                    return answer["Body"].read(), answer
                except _broken_off():
                    if attempt == ATTEMPTS:
                        raise
        raise AssertionError("unreachable")

    @contextmanager
    def asking(
        self,
        action: str,
        key: str | None = None,
        *,
        refused: type[TidegateError],
        writes: bool = False,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> Iterator[Any]:
        """A client to ask for one thing, and its errors in words.

        `action` is what the user needs the right for, such as `s3:GetObject`. What has no better word is
        said as `refused`. With `writes`, an answer that was lost is an `OutcomeUnknown`.
        """
        with _installed():
            from botocore.exceptions import BotoCoreError, ClientError

        asked = _Asked(self, action, key, refused, writes=writes)
        try:
            yield self.client(answer_seconds=answer_seconds)
        except ClientError as error:
            raise asked.answered(error) from error
        except (BotoCoreError, ValueError) as error:  # a number or date of which half has come is no value
            raise asked.unanswered(error) from error


_URL_OPTIONS = ("region", "endpoint_url", "path_style", "profile", "role_arn", "external_id")


def _plain(value: Any) -> Any:
    return value.get_secret_value() if hasattr(value, "get_secret_value") else value


def storage_options(place: S3Place) -> dict[str, str]:
    """The place in the words of delta-rs. It finds keys in the environment, or where the machine has them."""
    said = {
        "AWS_REGION": place.region,
        "AWS_ENDPOINT_URL": place.endpoint_url,
        "AWS_ALLOW_HTTP": "true" if (place.endpoint_url or "").startswith("http://") else None,
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": None if place.path_style is None else str(not place.path_style),
        "AWS_PROFILE": place.profile,
        "AWS_ACCESS_KEY_ID": place.access_key_id,
        "AWS_SECRET_ACCESS_KEY": place.secret_access_key,
        "AWS_SESSION_TOKEN": place.session_token,
        # The next version is created only if it is not there: that is what makes a commit a commit.
        "AWS_CONDITIONAL_PUT": "etag",
    }
    return {name: value for name, value in said.items() if value is not None}


def _switch(text: str | None) -> bool | None:
    if text is None:
        return None
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"`path_style={text}` in the URL of the bucket", hint="say true or false")
    return text.lower() == "true"


# --- Clients -----------------------------------------------------------------


@contextmanager
def _installed() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"S3 needs the Python package `{error.name}`",
            hint="install it with `pip install 'tidegate[s3]'`, wherever tasks run",
        ) from error


class _Clients:
    """The clients of this process. A forked child makes its own: connections must not be shared."""

    def __init__(self) -> None:
        self._made: dict[tuple[S3Place, float], Any] = {}
        self._turn = threading.Lock()

    def get(self, place: S3Place, answer_seconds: float) -> Any:
        client = self._made.get((place, answer_seconds))
        if client is None:
            with self._turn:
                client = self._made.get((place, answer_seconds)) or _made(place, answer_seconds)
                self._made[place, answer_seconds] = client
        return client

    def forget(self) -> None:
        self.__init__()  # type: ignore[misc] # the lock may have been held by a thread that was not forked


_CLIENTS = _Clients()
os.register_at_fork(after_in_child=_CLIENTS.forget)


def _made(place: S3Place, answer_seconds: float) -> Any:
    import boto3

    session = boto3.Session(botocore_session=_session(place))
    settings = _settings(place, answer_seconds)
    try:
        client = session.client("s3", endpoint_url=place.endpoint_url, config=settings)
    except ValueError as error:
        raise ConfigError(
            f"no address of an S3 server: {_line(error)}", hint="look at `endpoint_url`"
        ) from error
    client.meta.events.register("before-parse.s3", _spare_the_parser)
    client.meta.events.register("needs-retry.s3", _ask_again)
    client.meta.events.register("after-call.s3", _demand_whole)
    return client


def _session(place: S3Place) -> Any:
    """A session that logs in as the place says, and takes on its role if it has one."""
    own = _bare_session(place)
    if place.access_key_id is not None:
        own.set_credentials(place.access_key_id, place.secret_access_key, place.session_token)
    if place.role_arn is None:
        return own
    acting = _bare_session(place)
    acting.register_component("credential_provider", _Role(own, place.role_arn, place.external_id))
    return acting


def _bare_session(place: S3Place) -> Any:
    from botocore.session import Session

    session = Session(profile=place.profile)
    if place.region is not None:
        session.set_config_variable("region", place.region)
    return session


@dataclass(frozen=True)
class _Role:
    """Credentials of a role, asked for with one's own when first needed and again before they expire."""

    own: Any
    arn: str
    external_id: str | None

    def load_credentials(self) -> Any:
        from botocore.credentials import DeferredRefreshableCredentials

        return DeferredRefreshableCredentials(self._take_on, "assume-role")

    def _take_on(self) -> Any:
        from botocore.credentials import AssumeRoleCredentialFetcher
        from botocore.exceptions import NoCredentialsError

        credentials = self.own.get_credentials()
        if credentials is None:
            raise NoCredentialsError
        words = {"RoleSessionName": "tidegate"} | (
            {"ExternalId": self.external_id} if self.external_id else {}
        )
        fetcher = AssumeRoleCredentialFetcher(self.own.create_client, credentials, self.arn, words)
        return fetcher.fetch_credentials()


def _settings(place: S3Place, answer_seconds: float) -> Any:
    from botocore.config import Config

    path_style = place.endpoint_url is not None if place.path_style is None else place.path_style
    said = path_style or place.path_style is not None
    return Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=answer_seconds,
        max_pool_connections=CONNECTIONS,
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
        tcp_keepalive=True,
        s3={"addressing_style": "path" if path_style else "virtual"} if said else None,
    )


# --- Answers that were cut short ---------------------------------------------
#
# A line that breaks in the middle of an answer's headers looks to Python's HTTP client like their end: an
# object without a byte, a listing without an entry, half an ETag. Every whole answer says how long its body
# is, and what it says of an object to the end.

_WITH_A_BODY = (200, 206)
_NEVER_LEFT_OUT = {"HeadObject": ("etag", "last-modified"), "GetObject": ("etag",), "UploadPart": ("etag",)}


def _spare_the_parser(response_dict: Any, operation_model: Any, **_: Any) -> None:
    """For botocore, which takes half a date for another one, or fails at it: this is asked for again."""
    if _cut_short(response_dict["status_code"], response_dict["headers"], operation_model.name):
        response_dict["headers"] = {}


def _ask_again(response: Any, attempts: int, operation: Any, **_: Any) -> float | None:
    """For botocore: how long to wait before asking again, None if that is not for us to say."""
    if response is None or attempts >= ATTEMPTS:
        return None
    answer = response[0]
    if not _cut_short(answer.status_code, answer.headers, operation.name):
        return None
    answer.raw.close()
    return 0.1 * attempts


def _broken_off() -> tuple[type[Exception], ...]:
    """What reading a body raises when the line breaks, or its checksum does not fit."""
    from botocore import exceptions as kinds

    return kinds.HTTPClientError, kinds.IncompleteReadError, kinds.FlexibleChecksumError


def _demand_whole(http_response: Any, model: Any, **_: Any) -> None:
    from botocore.exceptions import ConnectionClosedError

    if _cut_short(http_response.status_code, http_response.headers, model.name):
        http_response.raw.close()
        raise ConnectionClosedError(endpoint_url=http_response.url)


def _cut_short(status: int, headers: Mapping[str, str], operation: str) -> bool:
    if status not in _WITH_A_BODY:
        return False
    said = {name.lower(): value for name, value in headers.items()}
    coding = said.get("transfer-encoding", "").lower()
    framed = said.get("content-length", "").isdigit() or coding.endswith("chunked")
    lacking = any(name not in said for name in _NEVER_LEFT_OUT.get(operation, ()))
    halved = not said.get("last-modified", "GMT").endswith(("GMT", "Z")) or _half(said.get("etag", "*"))
    return not framed or lacking or halved


def _half(etag: str) -> bool:
    return not etag or (etag.startswith('"') and (len(etag) == 1 or not etag.endswith('"')))


# --- Errors ------------------------------------------------------------------

_UNMET = ("PreconditionFailed", "ConditionalRequestConflict", "412")
_ABSENT = ("NoSuchKey", "404")
_DENIED = ("AccessDenied", "AllAccessDisabled", "AccountProblem", "401", "403")
_BUSY = ("SlowDown", "RequestLimitExceeded", "Throttling", "ThrottlingException", "TooManyRequests")
_ELSEWHERE = ("PermanentRedirect", "AuthorizationHeaderMalformed", "301")
_STRANGER = {
    "InvalidAccessKeyId": "look at the access key: the server does not know it",
    "SignatureDoesNotMatch": "look at the secret: it does not belong to the access key",
    "ExpiredToken": "log in again: the session has expired",
    "InvalidToken": "log in again: the session token is not valid here",
    "TokenRefreshRequired": "log in again: the session has expired",
    "RequestTimeTooSkewed": "set this machine's clock: it differs too much from the server's",
}
_SERVER_ERROR = 500


@dataclass(frozen=True, slots=True)
class _Asked:
    """One thing that was asked of S3."""

    place: S3Place
    action: str
    key: str | None
    refused: type[TidegateError]
    writes: bool

    @property
    def where(self) -> str:
        return f"s3://{self.place.bucket}/{self.key if self.key is not None else self.place.key('')}"

    def answered(self, error: Any) -> Exception:
        """What an answer means that says no."""
        if error.operation_name == "AssumeRole":
            return self._no_role(error)
        code = str(error.response.get("Error", {}).get("Code", ""))
        if code in _UNMET:
            return Unmet(code, certain=_first_and_final(error))
        if self.writes and not _first_and_final(error):
            return self._unknown(error)
        if code in _ABSENT and self.key is not None:
            return Absent(self.key)
        return self._no(code, error)

    def _no(self, code: str, error: Any) -> TidegateError:
        said, where = _said(error), self.where
        if code in ("NoSuchBucket", *_ABSENT):
            hint = "look at its name, the region and the endpoint, or create it"
            return LoginRefused(f"there is no bucket `{self.place.bucket}`", where=where, hint=hint)
        if code in _STRANGER:
            return LoginRefused(f"S3 does not let us in: {said}", where=where, hint=_STRANGER[code])
        if code in _DENIED:
            hint = f"grant {self.action} to whoever runs this, by a policy of the user, role or bucket"
            return NotAllowed(f"S3 does not allow {self.action}: {said}", where=where, hint=hint)
        if code in _ELSEWHERE:
            hint = f"say `region: {region}`" if (region := _region(error)) else "look at `region`"
            return ConfigError(f"the bucket lies in another region: {said}", where=where, hint=hint)
        if code in _BUSY or _status(error) >= _SERVER_ERROR:
            return ConnectError(f"S3 cannot answer now: {said}", where=where, hint="run it again")
        return self.refused(f"S3 refused {self.action}: {said}", where=where)

    def unanswered(self, error: Exception) -> Exception:
        """What it means that there was no answer."""
        from botocore import exceptions as kinds

        lost = (
            kinds.ConnectionError,
            kinds.HTTPClientError,
            kinds.IncompleteReadError,
            kinds.FlexibleChecksumError,
            ValueError,
        )
        nobody = (
            kinds.NoCredentialsError,
            kinds.PartialCredentialsError,
            kinds.CredentialRetrievalError,
            kinds.MetadataRetrievalError,
            kinds.TokenRetrievalError,
            kinds.NoAuthTokenError,
            kinds.SSOError,
            kinds.LoginError,
        )
        if isinstance(error, nobody):
            hint = (
                "configure keys, a `profile` or a `role_arn`, or log in as for the AWS command line,"
                " wherever tasks run"
            )
            return LoginRefused(f"no credentials for S3: {_line(error)}", where=self.where, hint=hint)
        if not isinstance(error, lost):
            hint = "look at `bucket`, `profile`, `region` and `endpoint_url`, and at ~/.aws/config"
            return ConfigError(f"S3 cannot be asked like this: {_line(error)}", where=self.where, hint=hint)
        if self.writes:
            return self._unknown(error)
        return ConnectError(
            f"no answer from S3: {_line(error)}",
            where=self.where,
            hint="look at `endpoint_url` and the network, then run it again",
        )

    def _unknown(self, error: Exception) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"the answer to {self.action} was lost: {_line(error)}", where=self.where, hint="run it again"
        )

    def _no_role(self, error: Any) -> LoginRefused:
        return LoginRefused(
            f"the role cannot be taken on: {_said(error)}",
            where=self.place.role_arn,
            hint="grant sts:AssumeRole on the role, let the role trust the caller, and look at `external_id`",
        )


def _first_and_final(error: Any) -> bool:
    """Whether this answers the only attempt there was, so that no earlier one can have been carried out."""
    attempts = error.response.get("ResponseMetadata", {}).get("RetryAttempts", 0)
    return attempts == 0 and _status(error) < _SERVER_ERROR


def _region(error: Any) -> str | None:
    """Where the bucket really lies, if the server says so."""
    headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    found: str | None = headers.get("x-amz-bucket-region") or error.response.get("Error", {}).get("Region")
    return found


def _status(error: Any) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _said(error: Any) -> str:
    said = error.response.get("Error", {})
    return " ".join(f"{said.get('Code', '')}: {said.get('Message', '')}".split()).strip(": ")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())

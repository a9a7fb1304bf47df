"""Secrets in AWS Secrets Manager: `${aws:name}`, or `${aws:name#key}` for one value of a secret in JSON.

Region, endpoint and credentials are those of the AWS conventions: environment, profile, role.
"""

from __future__ import annotations

import json

from tidegate.core import secrecy


def secret(reference: str) -> str:
    """The entry point."""
    name, _, key = reference.partition("#")
    whole = _value(name)
    return _part(whole, key) if key else whole


def _value(name: str) -> str:
    try:
        import boto3
        from botocore.exceptions import ClientError
    except ImportError as error:
        raise RuntimeError("boto3 is not installed (pip install 'tidegate[s3]')") from error
    client = boto3.client("secretsmanager")
    try:
        answer = client.get_secret_value(SecretId=name)
    except ClientError as error:
        if error.response["Error"]["Code"] == "ResourceNotFoundException":
            raise LookupError("there is none of that name in this account and region") from None
        raise
    if "SecretString" not in answer:
        raise LookupError("it is binary")
    return str(answer["SecretString"])


def _part(whole: str, key: str) -> str:
    secrecy.remember(whole)
    try:
        parts = json.loads(whole)
    except ValueError:
        raise LookupError("it is no JSON, so it has no parts") from None
    if not isinstance(parts, dict) or key not in parts:
        raise LookupError(f"it has no part `{key}`")
    return str(parts[key])

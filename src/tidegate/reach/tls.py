"""TLS, the same for every driver: what each mode means, and what goes wrong with it in words.

| mode | encrypted | the server's certificate |
|---|---|---|
| disable | never | |
| prefer | where the server can | is not looked at |
| require | always | is not looked at |
| verify-ca | always | is signed by an authority we trust |
| verify-full | always | the same, and was made out to the host we asked for |
"""

from __future__ import annotations

import os
import ssl

from tidegate.core.errors import TlsRefused
from tidegate.reach.login import Login

_SYSTEM_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)
_OTHER_HOST = "the certificate was made out to another host: connect by its name, or use mode verify-ca"
_NO_TLS = "turn TLS on at the server, or use mode prefer or disable"
_NO_CERT = "the server asks for a client certificate: name one with `cert` and `key` under `tls`"
_NOT_OURS = "`key` under `tls` does not belong to `cert`"
_UNTRUSTED = "`ca` under `tls` must name the authority that signed the server's certificate"
_SIGNS = {
    "hostname mismatch": _OTHER_HOST,
    "ip address mismatch": _OTHER_HOST,
    "does not match host name": _OTHER_HOST,
    "notvalidforname": _OTHER_HOST,
    "expired": "the server needs a new certificate",
    "does not support ssl": _NO_TLS,
    "ssl is required": _NO_TLS,
    "password in clear text": "use `tls` with mode require, verify-ca or verify-full",
    "requires a valid client certificate": _NO_CERT,
    "certificate required": _NO_CERT,
    "private key file": "`key` under `tls` must be readable by its owner alone: chmod 600",
    "key values mismatch": _NOT_OURS,
    "key_values_mismatch": _NOT_OURS,
    "certificate verify failed": _UNTRUSTED,
    "unknownissuer": _UNTRUSTED,
    "unknown ca": "the server does not trust the authority behind `cert`",
}
"""What drivers say, in small letters, and what to do about it; the first that fits."""


def refused(login: Login, said: str) -> TlsRefused | None:
    """What a driver says about TLS, in words; None if it says something else."""
    small = said.lower()
    for sign, hint in _SIGNS.items():
        if sign in small:
            mode = login.tls.mode
            return TlsRefused(f"no TLS as mode {mode} wants it: {said}", where=login.where, hint=hint)
    if any(word in small for word in ("ssl", "tls", "certificate")):
        return TlsRefused(f"TLS failed: {said}", where=login.where, hint="check `tls` of the connection")
    return None


def demand_files(login: Login) -> None:
    """Refuse files that are not there, before a driver says so in words of its own."""
    for key in ("ca", "cert", "key"):
        path = getattr(login.tls, key)
        if path and not os.access(path, os.R_OK):
            raise TlsRefused(
                f"the TLS file that `{key}` under `tls` names cannot be read: {path}",
                where=login.where,
                hint="check its path and permissions; on a cluster it has to be on every machine",
            )


def authorities() -> str | None:
    """The file of certificates that this system trusts."""
    named = ssl.get_default_verify_paths().cafile
    return next((path for path in (named, *_SYSTEM_FILES) if path and os.path.exists(path)), None)  # noqa: PTH110

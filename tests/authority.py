"""A certificate authority of the tests' own."""

from __future__ import annotations

from pathlib import Path

import trustme

from tests.servers import Certificate


class Authority:
    def __init__(self) -> None:
        self._ca = trustme.CA()

    @property
    def pem(self) -> bytes:
        return self._ca.cert_pem.bytes()

    def certificate(self, *hosts: str) -> Certificate:
        made = self._ca.issue_cert(*hosts)
        chain = b"".join(blob.bytes() for blob in made.cert_chain_pems)
        return Certificate(chain, made.private_key_pem.bytes(), self.pem)

    def files(self, folder: Path) -> dict[str, Path]:
        """The authority's own certificate, and a client's certificate and key, as files."""
        client = self.certificate("client.test")
        parts = {"ca": self.pem, "cert": client.chain, "key": client.key}
        files = {name: folder / f"{name}.pem" for name in parts}
        for name, file in files.items():
            file.write_bytes(parts[name])
            file.chmod(0o600)
        return files

"""Authorities and certificates for tests of TLS, as PEM files."""

from __future__ import annotations

import datetime
import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass
class Certificates:
    """An authority with certificates that it has signed: a valid and invalid ones for a server, and one for a client."""

    folder: Path

    def __post_init__(self) -> None:
        authority, other = trustme.CA(), trustme.CA()
        authority.cert_pem.write_to_path(self.path("ca"))
        other.cert_pem.write_to_path(self.path("other-ca"))
        past = datetime.datetime(2001, 1, 1, tzinfo=datetime.timezone.utc)
        for name, certificate in {
            "server": authority.issue_cert("localhost", "127.0.0.1"),
            "elsewhere": authority.issue_cert("elsewhere.example"),
            "expired": authority.issue_cert(
                "localhost", "127.0.0.1", not_before=past.replace(year=2000), not_after=past
            ),
            "client": authority.issue_cert("somebody@example.org"),
            "stranger": other.issue_cert("somebody@example.org"),
        }.items():
            certificate.private_key_pem.write_to_path(self.path(f"{name}-key"))
            self.path(name).write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.pem"

    def server(self, name: str = "server") -> ssl.SSLContext:
        """Return the context of a Python server with a certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.path(name), self.path(f"{name}-key"))
        return context

    def client(self, name: str | None = None) -> ssl.SSLContext:
        """Return the context of a Python client, with its trusted authority and its certificate."""
        context = ssl.create_default_context(cafile=self.path("ca"))
        if name is not None:
            context.load_cert_chain(self.path(name), self.path(f"{name}-key"))
        return context

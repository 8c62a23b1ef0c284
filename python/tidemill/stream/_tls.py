"""TLS of connectors: who is trusted, and who we are."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["Tls", "files"]


@dataclass(frozen=True)
class Tls:
    """Files in PEM for a connector that speaks TLS; what is not given is the environment's.

    Parameters
    ----------
    ca : str or path-like, optional
        Certificates of the authorities that are trusted; else ``TIDEMILL_TLS_CA``, else the system's. Of a server of ours
        (`from_webhook`): if it is given, clients need a certificate by one of them.
    certificate : str or path-like, optional
        Who we are, with any certificates between it and its authority; else ``TIDEMILL_TLS_CERTIFICATE``. Servers of ours need one.
    key : str or path-like, optional
        The private key of `certificate`, without a password; else ``TIDEMILL_TLS_KEY``.
    """

    ca: str | os.PathLike[str] | None = None
    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None


def files(tls: Tls | None) -> dict[str, str] | None:
    """What the engine is told of it."""
    if tls is None:
        return None
    if not isinstance(tls, Tls):
        raise TypeError(f"tls must be a tidemill.stream.Tls, not {tls!r}")
    named = {"ca": tls.ca, "certificate": tls.certificate, "key": tls.key}
    return {name: os.fspath(file) for name, file in named.items() if file is not None}

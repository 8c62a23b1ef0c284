"""TLS for connectors: trusted authorities and own certificates."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["Tls", "files"]


@dataclass(frozen=True)
class Tls:
    """PEM files for connectors that use TLS; those you do not set come from the environment.

    Parameters
    ----------
    ca : str or path-like, optional
        Certificates of trusted authorities; by default ``TIDEMILL_TLS_CA``, else those of the system. For a server that
        Tidemill runs (`from_webhook`): if set, clients need a certificate issued by one of them.
    certificate : str or path-like, optional
        Own certificate, with any certificates between it and its authority; by default ``TIDEMILL_TLS_CERTIFICATE``.
        Servers need one.
    key : str or path-like, optional
        The private key of `certificate`, without a password; by default ``TIDEMILL_TLS_KEY``.
    """

    ca: str | os.PathLike[str] | None = None
    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None


def files(tls: Tls | None) -> dict[str, str] | None:
    """Return the files, as the engine takes them."""
    if tls is None:
        return None
    if not isinstance(tls, Tls):
        raise TypeError(f"tls must be a tidemill.stream.Tls, not {tls!r}")
    named = {"ca": tls.ca, "certificate": tls.certificate, "key": tls.key}
    return {name: os.fspath(file) for name, file in named.items() if file is not None}

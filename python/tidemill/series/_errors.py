"""The error of series."""

from __future__ import annotations

__all__ = ["SeriesError"]


class SeriesError(ValueError):
    """Series that cannot be read, cleaned or shown as asked for; the message names what is wrong and the remedy."""

"""The exception of `tidemill.series`."""

from __future__ import annotations

__all__ = ["SeriesError"]


class SeriesError(ValueError):
    """Series cannot be read, cleaned or shown as requested; the message names the problem and the remedy."""

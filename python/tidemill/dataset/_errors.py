"""The exception of DataSets."""

from __future__ import annotations

from tidemill._errors import TidemillError

__all__ = ["DataSetError"]


class DataSetError(TidemillError):
    """A query could not be built or has failed; the message names the column, file or value at fault."""

"""The exception of DataSets."""

from __future__ import annotations

from tidemill._errors import TidemillError

__all__ = ["BadRowsWarning", "DataSetError"]


class DataSetError(TidemillError):
    """A query could not be built or has failed; the message names the column, file or value at fault."""


class BadRowsWarning(UserWarning):
    """Rows of files or streams could not be read and were left out, as ``on_error`` requests; the message gives their
    number and describes the first one.
    """


# Programs and tracebacks show their public names.
DataSetError.__module__ = BadRowsWarning.__module__ = "tidemill"

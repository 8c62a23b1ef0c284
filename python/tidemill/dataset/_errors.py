"""Where the native code looks for the exception of DataSets."""

from tidemill._tables.errors import DataSetError

__all__ = ["DataSetError"]

"""Display of a stream's first rows."""

from __future__ import annotations

from tidemill._streaming.write import run_plainly
from tidemill._tables.errors import DataSetError
from tidemill._tables.table import Table
from tidemill._tidemill import NativeDataSet, NativeTable

__all__ = ["first_rows"]

#: Ends a job that has produced enough rows, on every worker: no other error contains this text.
_ENOUGH = "tidemill-show-has-enough-rows"


class _First:
    """A sink for a number of rows, all on worker 0."""

    #: Read by the engine.
    _copies_max = 1
    __name__ = "show"

    def __init__(self, count: int) -> None:
        self._missing = count
        self.tables: list[Table] = []

    def __call__(self, rows: Table) -> None:
        taken = rows if len(rows) <= self._missing else rows.slice(0, self._missing)
        self._missing -= len(taken)
        self.tables.append(taken)
        if self._missing <= 0:
            raise DataSetError(_ENOUGH)


def first_rows(stream: NativeDataSet, count: int) -> Table:
    """Run a stream until it has produced this many rows, or has ended. Collective; only worker 0 gets the rows.

    Nothing is committed: a source that can be read again stays where it was.
    """
    sink = _First(count)
    if count > 0:
        try:
            run_plainly("show", stream, sink)
        except DataSetError as error:
            if _ENOUGH not in str(error):
                raise
    return Table(NativeTable.concat(stream.empty(), [table._native for table in sink.tables]))

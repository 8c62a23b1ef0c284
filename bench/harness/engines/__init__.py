"""The systems that answer the queries on tables: a module for each, imported only in that system's own process.

| module       | system                         | two cores as                      | sorts                            |
|--------------|--------------------------------|-----------------------------------|----------------------------------|
| `tidemill`   | Tidemill                       | 2 workers x 1 thread, 1 x 2       | the records as they are          |
| `polars`     | Polars, in memory or streaming | 2 threads                         | Parquet, key and value as binary |
| `duckdb`     | DuckDB                         | 2 threads                         | the same                         |
| `datafusion` | DataFusion alone               | 2 partitions, 2 threads           | the same                         |
| `spark`      | Spark                          | local[2]                          | the same                         |
| `dask`       | Dask's data frames             | 2 threads                         | -                                |
| `ray`        | Ray Data                       | 2 CPUs                            | -                                |
| `numpy`      | NumPy by hand                  | 2 threads                         | the records as they are          |
| `pyarrow`    | pyarrow                        | 1 thread: its sort has no more    | the records as they are          |

Each has `queries(task)`, which loads tables if they are to be in memory and returns a function that gives the answer, or
`sorter(task)`, which returns a function that sorts one folder into another, or both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Query = Callable[[], Any]  # a table with the Arrow PyCapsule interface: a key and a whole number in each row
Sorter = Callable[[Path, Path], None]

SQL = {
    "group": "select k, cast(sum(x) as bigint) as x from {facts} group by k",
    "join": "select g, cast(sum(x) as bigint) as x from {facts} f join {dimension} d on f.k = d.k group by g",
}
#: Functions over the rows of a key in order: SQL of the window, and of the number that it adds to each row's checksum.
OVER = "over (partition by k order by v)"
WINDOWS = {
    "row-number": (f"row_number() {OVER} as w", "w"),
    "running-sum": (f"sum(x) {OVER} as w", "w"),
    "lag-lead": (f"lag(x) {OVER} as w, lead(x, 2) {OVER} as u", "coalesce(w, 5000) + 3 * coalesce(u, 7000)"),
}
# Every row's number counts, times a number of that row: a value in a wrong row shows. Of all rows there is one answer, so that no
# system is charged for handing millions of rows to Python.
SQL |= {
    name: f"select count(*) as k, cast(sum(({number}) * (x + 2000)) as bigint) as x from (select x, {windows} from {{facts}}) as t"
    for name, (windows, number) in WINDOWS.items()
}


@dataclass(frozen=True)
class Task:
    """What one process is to do: `engine` may name a variant after a hyphen, such as ``polars-streaming``."""

    engine: str
    query: str
    folder: Path  # of the input
    in_memory: bool  # tables are loaded before the clock starts, each in the form its system likes best
    memory_mib: int  # a bound on what the system may hold; 0 without

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables that the query reads; none for texts and records."""
        return ("facts", "dimension") if self.query == "join" else ("facts",) if self.query in SQL else ()

    @property
    def text(self) -> Path:
        return self.folder / "text.txt"

    def parquet(self, table: str) -> list[Path]:
        return sorted((self.folder / table).glob("*.parquet"))

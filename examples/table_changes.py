"""Follows a database table as rows are added to it, and keeps the hourly sales of each shop in another table.

python examples/table_changes.py [DATABASE]              an SQLite file with a table orders: id, shop, cents, at (ISO 8601)
tidemill run -n 4 examples/table_changes.py [DATABASE]   on four workers
python examples/table_changes.py DATABASE --follow       waits for new rows, until `tidemill stop sales`

Without a database it generates 20,000 orders. When you start it again after following one, it resumes where it stopped: a checkpoint
beside the database has the last id of each split, and the hours that are not over.
"""

from __future__ import annotations

import random
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import tidemill as tm

#: Ids are divided into this many splits, each of which is read by one thread of one worker.
SPLITS = 4
ROWS_MAX = 1000
SALES = (
    "create table if not exists sales (shop text, hour text, orders integer, cents integer, primary key (shop, hour))"
)


def make_up(path: Path) -> None:
    """Orders of a week."""
    dice = random.Random(0)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("create table orders (id integer primary key, shop text, cents integer, at text)")
        for number in range(20_000):
            at = datetime(2026, 1, 1) + timedelta(seconds=30 * number)
            order = (f"shop {dice.randrange(5)}", dice.randrange(100, 10_000), at.isoformat())
            database.execute("insert into orders (shop, cents, at) values (?, ?, ?)", order)


def orders(path: Path, follow: bool = False) -> tm.DataSet:
    """The rows of the table; `follow`: and those that will be added."""

    def read(split: str, position: int | None) -> Iterator[tuple[list[dict[str, Any]], int] | None]:
        last = position or 0
        query = "select id, shop, cents, at from orders where id > ? and id % ? = ? order by id limit ?"
        with closing(sqlite3.connect(path)) as database:
            while True:
                found = database.execute(query, (last, SPLITS, int(split), ROWS_MAX)).fetchall()
                if found:
                    last = found[-1][0]
                    rows = (
                        {"shop": shop, "cents": cents, "at": datetime.fromisoformat(at)} for _, shop, cents, at in found
                    )
                    yield list(rows), last
                elif follow:
                    yield None
                else:
                    return

    schema = {"shop": "str", "cents": "int64", "at": "timestamp[us]"}
    splits = [str(number) for number in range(SPLITS)]
    return tm.stream.from_function(
        read, schema, splits=splits, time="at", max_out_of_orderness="1m", poll_interval="1s", name="orders"
    )


def sales(rows: tm.DataSet) -> tm.DataSet:
    """Orders and their sum by shop and hour."""
    hours = rows.group_by("shop", tm.stream.window(tm.stream.tumbling("1h"), on="at"))
    return hours.agg(orders=tm.count(), cents=tm.col("cents").sum())


def keep(path: Path, rows: tm.Table) -> None:
    """Put results into their table. A function sees some again after a failure: they replace what is there."""
    found = [(row["shop"], row["window_start"].isoformat(), row["orders"], row["cents"]) for row in rows.to_pylist()]
    with closing(sqlite3.connect(path, timeout=60)) as database, database:
        database.executemany("insert or replace into sales values (?, ?, ?, ?)", found)


def run(path: Path, follow: bool = False) -> None:
    if tm.init().rank == 0:
        with closing(sqlite3.connect(path, timeout=60)) as database, database:
            database.execute(SALES)
    tm.init().comm.barrier()
    checkpoint = tm.stream.Checkpoint(f"{path}.checkpoints", interval="1s") if follow else None
    sales(orders(path, follow)).write_stream(lambda rows: keep(path, rows), name="sales", checkpoint=checkpoint)
    if tm.init().rank == 0:
        with closing(sqlite3.connect(path)) as database:
            query = "select shop, sum(orders), sum(cents) / 100.0, count(*) from sales group by shop order by shop"
            for shop, count, amount, hours in database.execute(query):
                print(f"{shop}: {count} orders, {amount:.2f} in {hours} hours")


def main() -> None:
    given = [argument for argument in sys.argv[1:] if argument != "--follow"]
    if given:
        return run(Path(given[0]), follow="--follow" in sys.argv)
    job = tm.init()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(job.comm.bcast(folder)) / "shops.db"
        if job.rank == 0:
            make_up(path)
        job.comm.barrier()
        run(path)
        # Its owner removes it.
        job.comm.barrier()


if __name__ == "__main__":
    main()

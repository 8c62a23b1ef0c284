"""Queries 0 to 8 of Nexmark over streams ``person``, ``auction`` and ``bid``, and the same queries over tables, in
DuckDB's SQL.

Windows are those of the benchmark of Apache Flink's community: 10 seconds, for query 5 sliding by 2. A stream emits
only final results, so two queries define when a result is final: the winning bid of an auction is known at the end of
the ten-second window in which the auction ends. Query 4 returns averages of the auctions that end in each window,
whereas Nexmark updates one average of all auctions so far with each bid; query 6 returns a row for each auction that
ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tidemill as tm

__all__ = ["ANSWERS", "QUERIES", "TITLES", "query"]

TITLES = {
    0: "pass-through",
    1: "currency conversion",
    2: "selection",
    3: "local item suggestion",
    4: "average price for a category",
    5: "hot items",
    6: "average selling price by seller",
    7: "highest bid",
    8: "monitor new users",
}

Streams = Mapping[str, tm.DataSet]

#: The highest bid of each auction that had one while it was open.
_WINNING = """
    select a.id, a.seller, a.category, a.expires, max(b.price) as price,
        tumble(a.expires, '10 seconds') as closing
    from auction a join bid b on a.id = b.auction and b.date_time between a.date_time and a.expires
    group by a.id, a.seller, a.category, a.expires, closing
"""

#: By number: SQL, or a function of the streams.
QUERIES: dict[int, str | Callable[[Streams], tm.DataSet]] = {
    0: "select auction, bidder, price, date_time, extra from bid",
    1: "select auction, bidder, 0.908e0 * price as price, date_time, extra from bid",
    2: "select auction, price from bid where auction % 123 = 0",
    3: """
        select p.name, p.city, p.state, a.id
        from auction a join person p on a.seller = p.id
        where a.category = 10 and p.state in ('OR', 'ID', 'CA')
    """,
    4: f"""
        select category, closing['start'] as closing, avg(price) as price
        from ({_WINNING}) group by category, closing
    """,
    5: """
        select start, auction, bids
        from (
            select start, auction, bids, rank() over (partition by start order by bids desc) as place
            from (
                select w['start'] as start, auction, bids
                from (
                    select auction, hop(date_time, '2 seconds', '10 seconds') as w, count(*) as bids
                    from bid group by auction, w
                )
            )
        )
        where place = 1
    """,
    6: lambda streams: _average_of_last_ten(
        tm.sql(f"select seller, id, expires, price, closing['end'] as over from ({_WINNING})", **streams)
    ),
    7: """
        select b.auction, b.bidder, b.price, b.date_time
        from bid b
        join (
            select w['start'] as start, w['end'] as stop, price
            from (select tumble(date_time, '10 seconds') as w, max(price) as price from bid group by w)
        ) highest on b.price = highest.price and b.date_time >= highest.start and b.date_time < highest.stop
    """,
    8: """
        select p.id, p.name, p.w['start'] as start
        from (select id, name, tumble(date_time, '10 seconds') as w, count(*) as n from person group by id, name, w) p
        join (select seller, tumble(date_time, '10 seconds') as w, count(*) as n from auction group by seller, w) a
            on p.id = a.seller and p.w = a.w
    """,
}


def query(number: int, streams: Streams) -> tm.DataSet:
    """Return the query with this number over these streams."""
    of = QUERIES[number]
    return tm.sql(of, **streams) if isinstance(of, str) else of(streams)


def _average_of_last_ten(winning: tm.DataSet) -> tm.DataSet:
    """For each auction that has ended: the average price of the last ten of its seller, including itself."""
    schema = {"seller": "int64", "auction": "int64", "price": "float64"}
    return winning.key_by("seller").process(_last_ten, schema)


def _last_ten(key: dict[str, Any], rows: list[dict[str, Any]], context: tm.stream.KeyContext) -> list[dict[str, Any]]:
    """Auctions within ten seconds come in any order, so they wait for the end of these."""
    state: tuple[list[tuple[Any, ...]], list[int]] = context.state or ([], [])
    waiting, prices = state
    for row in rows:
        waiting.append((row["over"], row["expires"], row["id"], row["price"]))
        context.set_timer(row["over"])
    made = []
    for now in context.timers:
        for _, _, auction, price in sorted(ended for ended in waiting if ended[0] <= now):
            prices = [*prices[-9:], price]
            made.append({**key, "auction": auction, "price": sum(prices) / len(prices)})
        waiting = [auction for auction in waiting if auction[0] > now]
    context.state = (waiting, prices)
    return made


_TEN_SECONDS = "time_bucket(interval 10 seconds, {})"
_WON = f"""
    select a.id, a.seller, a.category, a.expires, max(b.price) as price, {_TEN_SECONDS.format("a.expires")} as closing
    from auction a join bid b on a.id = b.auction and b.date_time between a.date_time and a.expires
    group by all
"""

#: DuckDB's version of queries that it does not support.
ANSWERS: dict[int, str] = {
    4: f"select category, closing, avg(price) from ({_WON}) group by all",
    5: """
        with counts as (
            select start, auction, count(*) as bids
            from (
                select auction, time_bucket(interval 2 seconds, date_time) - unnest(range(5)) * interval 2 seconds as start
                from bid
            )
            group by all
        )
        select start, auction, bids from counts qualify bids = max(bids) over (partition by start)
    """,
    6: f"""
        select seller, id, avg(price) over (partition by seller order by expires, id rows between 9 preceding and current row)
        from ({_WON})
    """,
    7: f"""
        select auction, bidder, price, date_time
        from bid qualify price = max(price) over (partition by {_TEN_SECONDS.format("date_time")})
    """,
    8: f"""
        select distinct p.id, p.name, {_TEN_SECONDS.format("p.date_time")}
        from person p join auction a on p.id = a.seller
        where {_TEN_SECONDS.format("p.date_time")} = {_TEN_SECONDS.format("a.date_time")}
    """,
}

"""A generated stock market with the difficulties of real prices: the data of ``make demo``, reproducible for a seed."""

from __future__ import annotations

import csv
from os import PathLike
from pathlib import Path

import numpy as np

__all__ = ["SECTORS", "write_market"]

SECTORS = (
    "Energy", "Materials", "Industrials", "Discretionary", "Staples",
    "Health Care", "Financials", "Technology", "Utilities", "Telecom",
)  # fmt: skip

_FIRST_DAY = "2005-01-03"
#: Shares above this price are split.
_SPLIT_ABOVE = 120.0


def write_market(folder: str | PathLike[str], ids: int = 240, days: int = 1000, seed: int = 0) -> tuple[Path, Path]:
    """Write ``prices.csv`` and ``sectors.csv`` of a generated market.

    A stock's daily change is the sum of changes of the market, of its sector and its own. A crash after six tenths of
    the time makes the market's part several times as large, for a hundred days. Prices have splits (in a column
    ``split``), days without trade, negative values that mark a mean of bid and ask, and duplicate rows; some stocks
    start late or end early.

    Parameters
    ----------
    folder : path
        Created if it does not exist.
    ids, days : int
        Number of stocks and of trading days, at least 10 and 30.
    seed : int, default=0

    Returns
    -------
    prices, sectors : Path
        ``date,ticker,price,volume,split`` and ``ticker,name,sector``.
    """
    if ids < 10 or days < 30:
        raise ValueError(f"a market must have at least 10 stocks and 30 days, not {ids} and {days}")
    rng = np.random.default_rng(seed)
    calendar = np.busday_offset(_FIRST_DAY, np.arange(days), roll="forward")
    sector = np.sort(rng.integers(len(SECTORS), size=ids))
    tickers = _tickers(rng, ids)

    # The volatility of the market: 1, and up to 5 in the crash.
    since = np.arange(days) - 0.6 * days
    nerves = 1 + 4 * np.where(since > 0, np.exp(-since / 60), np.exp(since / 8))
    market = rng.standard_normal(days) * 0.006 * nerves + 0.0004
    market -= np.where((since > -10) & (since < 40), 0.009, 0.0) - np.where((since > 60) & (since < 200), 0.0015, 0.0)
    of_sector = rng.standard_normal((days, len(SECTORS))) * 0.008 * np.sqrt(nerves)[:, None]
    # Some sectors rise or fall for a while.
    wave = np.sin(2 * np.pi * (np.arange(days)[:, None] / days * 2 + np.arange(len(SECTORS)) / len(SECTORS)))
    of_sector += 0.0006 * wave
    beta = rng.normal(1.0, 0.25, ids).clip(0.3, 1.8)
    own = rng.standard_normal((days, ids)) * rng.gamma(8, 0.0011, ids) * np.sqrt(nerves)[:, None]
    change = market[:, None] * beta + of_sector[:, sector] + own
    price = np.exp(rng.normal(3.4, 0.6, ids) + np.cumsum(change, axis=0))

    # Splits: from that day on, there are more shares for the same value.
    split = np.zeros((days, ids))
    for stock in range(ids):
        day = 1
        while day < days:
            above = np.flatnonzero(price[day:, stock] > _SPLIT_ABOVE)
            if not len(above):
                break
            day += int(above[0])
            ratio = 3.0 if rng.random() < 0.15 else 2.0
            split[day, stock] = ratio
            price[day:, stock] /= ratio
            day += 1
    volume = (np.exp(rng.normal(13.5, 1.2, ids)) * rng.gamma(4, 0.25, (days, ids)) * np.sqrt(nerves)[:, None]).astype(
        int
    )
    # Some companies are listed late and some disappear, but never the first, whose ticker users will look for.
    begin = np.where(rng.random(ids) < 0.08, rng.integers(0, days // 2, ids), 0)
    end = np.where(rng.random(ids) < 0.06, rng.integers(days // 2, days, ids), days)
    begin[0], end[0] = 0, days
    there = (begin <= np.arange(days)[:, None]) & (np.arange(days)[:, None] < end)
    # Days without trade: rare for most stocks, frequent for a few.
    quiet = np.where(rng.random(ids) < 0.03, 0.1, 0.002)
    quiet[0] = 0.0
    traded = (rng.random((days, ids)) >= quiet) | (split > 0)
    quoted = rng.random((days, ids)) < 0.001
    doubled = rng.random((days, ids)) < 0.0005

    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    prices, sectors = out / "prices.csv", out / "sectors.csv"
    with prices.open("w", encoding="utf-8") as file:
        file.write("date,ticker,price,volume,split\n")
        for day, date in enumerate(calendar.astype(str).tolist()):
            lines = []
            for stock in np.flatnonzero(there[day] & traded[day]).tolist():
                cost = -price[day, stock] if quoted[day, stock] else price[day, stock]
                shares = f"{split[day, stock]:g}" if split[day, stock] else ""
                line = f"{date},{tickers[stock]},{cost:.3f},{volume[day, stock]},{shares}\n"
                lines.append(line)
                if doubled[day, stock]:
                    lines.append(f"{date},{tickers[stock]},{cost * 1.01:.3f},{volume[day, stock]},{shares}\n")
            file.writelines(lines)
    with sectors.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["ticker", "name", "sector"])
        for number, ticker in enumerate(tickers):
            table.writerow([ticker, f"{SECTORS[sector[number]]} {ticker.title()}", SECTORS[sector[number]]])
    return prices, sectors


def _tickers(rng: np.random.Generator, count: int) -> list[str]:
    """Return distinct words of three or four letters."""
    letters = np.array(list("ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
    found: dict[str, None] = {}
    while len(found) < count:
        found.setdefault("".join(letters[rng.integers(26, size=3 + (len(found) > 15_000))]))
    return list(found)

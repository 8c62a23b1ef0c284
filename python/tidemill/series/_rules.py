"""By which rules rows are cleaned, and the report of what each rule did."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from tidemill.series._errors import SeriesError

__all__ = ["RULES", "Report", "Rules"]


@dataclass(frozen=True)
class Rules:
    """How rows are cleaned.

    Parameters
    ----------
    negative : {"absolute", "missing", "keep"}, default="absolute"
        What a value below 0 is: a price that stands for the mean of bid and ask, as in the prices of CRSP, so that its
        absolute value counts; no value; or a value like others. Unless they are kept, a value of 0 is no value either.
    splits : {"column", "detect", "keep"}, default="column"
        Values before a split are divided by its ratio, new shares for an old one: 2 where one share became two. ``"column"``: the
        ratio is in the column ``split`` in the row of the first day at the new price, if there is such a column; 0, 1 or nothing mean
        that there is none. Where the value does not jump by about the ratio, it is adjusted already, and is left alone. ``"detect"``: it is found where a value jumps by a usual ratio, far beyond what the
        series does on other days; the report lists what was found. ``"keep"``: values stay as they are.
    split_is : {"ratio", "added"}, default="ratio"
        What the column ``split`` says: new shares for an old one, or how many were added to each, as FACPR of CRSP does: 1 where one
        share became two, 0.5 where two became three, -0.9 where ten became one; 0, -1 or nothing mean that there is none.
    """

    negative: Literal["absolute", "missing", "keep"] = "absolute"
    splits: Literal["column", "detect", "keep"] = "column"
    split_is: Literal["ratio", "added"] = "ratio"

    def __post_init__(self) -> None:
        if self.negative not in ("absolute", "missing", "keep"):
            raise SeriesError(f"negative is 'absolute', 'missing' or 'keep', not {self.negative!r}")
        if self.splits not in ("column", "detect", "keep"):
            raise SeriesError(f"splits is 'column', 'detect' or 'keep', not {self.splits!r}")
        if self.split_is not in ("ratio", "added"):
            raise SeriesError(f"split_is is 'ratio' or 'added', not {self.split_is!r}")


#: Each rule, and what it did, in the order in which they are applied.
RULES = {
    "unreadable": "rows that cannot be read: left out",
    "without_key": "rows without id or time: left out",
    "factors_differ": "rows whose two factors of a split differ: left out",
    "negative": "negative values: their absolute value, or missing",
    "missing": "rows without a value: left out",
    "duplicates": "more rows of an id and a time: the earliest counts",
    "duplicates_that_differ": "of these, with another value than the earliest",
    "splits": "splits: values before them divided by the ratio",
    "flat_splits": "splits that were told, but where the value does not jump: left alone",
    "gaps": "times without a value between first and last of an id: filled in windows",
    "late": "rows of times that were over: left out",
}


@dataclass
class Report:
    """What cleaning did; the same on every worker.

    Attributes
    ----------
    columns : dict of str to str
        Which column was what.
    rows, ids, times : int
    first, last : str
        Times.
    counts : dict of str to int
        For each rule how often it did something.
    found : list of (id, time, ratio)
        Splits that were detected.
    flat : list of (id, time, ratio)
        Splits that were told, at which the value does not jump.
    notes : list of str
    """

    columns: dict[str, str]
    rows: int = 0
    ids: int = 0
    times: int = 0
    first: str = ""
    last: str = ""
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RULES, 0))
    found: list[tuple[str, str, float]] = field(default_factory=list)
    flat: list[tuple[str, str, float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        columns = ", ".join(f"{role} {name!r}" for role, name in self.columns.items())
        lines = [
            f"{self.rows:,} rows of {self.ids:,} ids at {self.times:,} times, {self.first} to {self.last} ({columns})"
        ]
        lines += [f"  {count:>9,}  {RULES[rule]}" for rule, count in self.counts.items() if count]
        for splits, what in ((self.found, ""), (self.flat, ", but no jump")):
            lines += [f"             {name} {time}: {ratio:g} for 1{what}" for name, time, ratio in splits[:5]]
            if len(splits) > 5:
                lines.append(f"             and {len(splits) - 5:,} more, in the report")
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines)

    def check_splits(self, column: str | None) -> None:
        """Refuse a column of splits that was named, if values do not jump at most of what it tells.

        Raises
        ------
        SeriesError
        """
        if column is None or self.counts["flat_splits"] <= self.counts["splits"]:
            return
        name, time, ratio = self.flat[0]
        raise SeriesError(
            f"values do not jump at {self.counts['flat_splits']:,} of the splits that column {column!r} tells, such as {name} at {time} "
            f"({ratio:g} for 1): the values are adjusted for them already, or the column says something else (--split-is); "
            '--splits keep (splits="keep") leaves the column alone'
        )

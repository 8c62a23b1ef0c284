"""The rules for cleaning rows, and the report of what each rule did."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from tidemill.series._errors import SeriesError

__all__ = ["RULES", "Report", "Rules"]


@dataclass(frozen=True)
class Rules:
    """Rules for cleaning rows.

    Parameters
    ----------
    negative : {"absolute", "missing", "keep"}, default="absolute"
        How to treat a value below 0. ``"absolute"``: it marks a price that is the mean of bid and ask, as in CRSP, and
        its absolute value is used. ``"missing"``: it is missing. ``"keep"``: it is a normal value. Unless values are
        kept, 0 counts as missing, too.
    splits : {"column", "detect", "keep"}, default="column"
        Values before a split are divided by its ratio of new shares to old ones: 2 if one share became two.
        ``"column"``: the ratio is in the column ``split``, if it exists, in the row of the first day at the new price;
        0, 1 or an empty value mean no split. If the value does not jump by about the ratio, it is already adjusted, and
        stays unchanged. ``"detect"``: splits are detected where a value jumps by a usual ratio, far more than on other
        days of the series; the report lists them. ``"keep"``: values stay unchanged.
    split_is : {"ratio", "added"}, default="ratio"
        Meaning of the column ``split``: the ratio of new shares to old ones, or the number of shares added to each, as
        FACPR in CRSP: 1 if one share became two, 0.5 if two became three, -0.9 if ten became one; 0, -1 or an empty
        value mean no split.
    """

    negative: Literal["absolute", "missing", "keep"] = "absolute"
    splits: Literal["column", "detect", "keep"] = "column"
    split_is: Literal["ratio", "added"] = "ratio"

    def __post_init__(self) -> None:
        if self.negative not in ("absolute", "missing", "keep"):
            raise SeriesError(f"negative must be 'absolute', 'missing' or 'keep', not {self.negative!r}")
        if self.splits not in ("column", "detect", "keep"):
            raise SeriesError(f"splits must be 'column', 'detect' or 'keep', not {self.splits!r}")
        if self.split_is not in ("ratio", "added"):
            raise SeriesError(f"split_is must be 'ratio' or 'added', not {self.split_is!r}")


#: Each rule and its effect, in the order in which they are applied.
RULES = {
    "unreadable": "rows that cannot be read: left out",
    "without_key": "rows without id or time: left out",
    "factors_differ": "rows whose two factors of a split differ: left out",
    "negative": "negative values: their absolute value, or missing",
    "missing": "rows without a value: left out",
    "duplicates": "more rows of an id and a time: the earliest counts",
    "duplicates_that_differ": "of these, with another value than the earliest",
    "splits": "splits: values before them divided by the ratio",
    "flat_splits": "splits in the data at which the value does not jump: left alone",
    "gaps": "times without a value between first and last of an id: filled in windows",
    "late": "rows of times that were over: left out",
}


@dataclass
class Report:
    """Report of the cleaning; the same on every worker.

    Attributes
    ----------
    columns : dict of str to str
        Columns by role.
    rows, ids, times : int
    first, last : str
        First and last time.
    counts : dict of str to int
        Number of applications of each rule.
    found : list of (id, time, ratio)
        Detected splits.
    flat : list of (id, time, ratio)
        Splits of the column at which the value does not jump.
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
        """Return the whole report, for JSON."""
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
        """Raise if the user named a column of splits but values do not jump at most of them.

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

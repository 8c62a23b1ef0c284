"""Expression methods for strings, dates and lists: ``col("x").str``, ``.dt`` and ``.list``."""

from __future__ import annotations

import re

from tidemill._tables.errors import DataSetError
from tidemill.dataset._expr import Expr, as_value, call, lit

__all__ = ["DateTimes", "Lists", "Strings"]

#: The letters allowed after % in `DateTimes.format`.
_STRFTIME = "aAbBcCdDeFfgGhHIjklmMnpPrRsStTuUvVwWxXyYzZ%"


class Strings:
    """String functions. Positions count characters from 0; patterns of ``match`` are regular expressions."""

    def __init__(self, expr: Expr) -> None:
        self._expr = expr

    def upper(self) -> Expr:
        """Convert to upper case."""
        return call("upper", self._expr)

    def lower(self) -> Expr:
        """Convert to lower case."""
        return call("lower", self._expr)

    def strip(self, characters: str | None = None) -> Expr:
        """Remove blanks (or any of `characters`) from both ends."""
        return self._strip("btrim", characters)

    def lstrip(self, characters: str | None = None) -> Expr:
        """Remove blanks (or any of `characters`) from the beginning."""
        return self._strip("ltrim", characters)

    def rstrip(self, characters: str | None = None) -> Expr:
        """Remove blanks (or any of `characters`) from the end."""
        return self._strip("rtrim", characters)

    def _strip(self, name: str, characters: str | None) -> Expr:
        return call(name, self._expr, lit(" \t\r\n" if characters is None else characters))

    def len(self) -> Expr:
        """Return the number of characters."""
        return call("character_length", self._expr)

    def len_bytes(self) -> Expr:
        """Return the number of bytes in UTF-8."""
        return call("octet_length", self._expr)

    def contains(self, text: str | Expr) -> Expr:
        """Test whether the string contains `text`, taken literally."""
        return call("contains", self._expr, as_value(text))

    def starts_with(self, text: str | Expr) -> Expr:
        """Test whether the string starts with the given text."""
        return call("starts_with", self._expr, as_value(text))

    def ends_with(self, text: str | Expr) -> Expr:
        """Test whether the string ends with the given text."""
        return call("ends_with", self._expr, as_value(text))

    def like(self, pattern: str | Expr, *, ignore_case: bool = False) -> Expr:
        """Test whether the whole string matches a SQL pattern: ``%`` is any text, ``_`` any character."""
        return Expr(self._expr._native.like(as_value(pattern)._native, ignore_case))

    def match(self, pattern: str, *, ignore_case: bool = False) -> Expr:
        """Test whether `pattern` matches anywhere in the string."""
        return call("regexp_like", self._expr, lit(pattern), *([lit("i")] if ignore_case else []))

    def count_matches(self, pattern: str) -> Expr:
        """Count the matches of `pattern`."""
        return call("regexp_count", self._expr, lit(pattern))

    def replace(self, old: str | Expr, new: str | Expr) -> Expr:
        """Replace every occurrence of `old`, taken literally; an empty `old` matches between all characters, as in
        Python.
        """
        if isinstance(old, str) and isinstance(new, str) and not old:
            # The engine's function does not find empty strings.
            return call("regexp_replace", self._expr, lit(""), lit(_literally(new)), lit("g"))
        return call("replace", self._expr, as_value(old), as_value(new))

    def replace_match(self, pattern: str, new: str) -> Expr:
        r"""Replace everything that `pattern` matches; in `new`, ``\1`` is the first group and ``\\`` a backslash."""
        return call("regexp_replace", self._expr, lit(pattern), lit(_literally(new, groups=True)), lit("g"))

    def slice(self, start: int, length: int | None = None) -> Expr:
        """Return at most `length` characters from `start` (0 is the first)."""
        if start < 0:
            raise ValueError("start counts from the beginning and cannot be negative")
        return call("substr", self._expr, lit(start + 1), *([] if length is None else [lit(length)]))

    def split(self, by: str) -> Expr:
        """Split at each `by` into a list; an empty string gives an empty list."""
        return call("string_to_array", self._expr, lit(by))

    def split_part(self, by: str, index: int) -> Expr:
        """Split at each `by` and return part `index` (0 is the first, -1 the last); empty if it does not exist."""
        return call("split_part", self._expr, lit(by), lit(index + 1 if index >= 0 else index))

    def find(self, text: str | Expr) -> Expr:
        """Return the position of the first `text`; -1 if not found."""
        return (call("strpos", self._expr, as_value(text)) - 1).cast("int64")

    def pad_start(self, length: int, fill: str = " ") -> Expr:
        """Pad at the beginning, or cut at the end, to `length` characters."""
        return call("lpad", self._expr, lit(length), lit(fill))

    def pad_end(self, length: int, fill: str = " ") -> Expr:
        """Pad or cut at the end to `length` characters."""
        return call("rpad", self._expr, lit(length), lit(fill))

    def reverse(self) -> Expr:
        """Reverse the string."""
        return call("reverse", self._expr)

    def to_date(self, *formats: str, strict: bool = True) -> Expr:
        """Convert to a date.

        Parameters
        ----------
        *formats : str
            As in ``strptime``; the first that matches is used. By default ISO 8601.
        strict : bool, default=True
            If True, a string that is not a date is an error; otherwise it becomes null.
        """
        if not formats:
            return self._expr.cast("date", strict=strict)
        return self.to_datetime(*formats, strict=strict).cast("date")

    def to_datetime(self, *formats: str, strict: bool = True) -> Expr:
        """Convert to a datetime in microseconds.

        Parameters
        ----------
        *formats : str
            As in ``strptime``; the first that matches is used. By default ISO 8601. With ``%z`` the result is in UTC;
            ``%y`` means 1969 to 2068.
        strict : bool, default=True
            If True, a string that is not a time is an error; otherwise it becomes null.

        Examples
        --------
        >>> import tidemill as tm
        >>> dates = tm.from_dict({"d": ["31.12.2024", "12/31/24", "soon"]})
        >>> found = dates.select(tm.col("d").str.to_datetime("%d.%m.%Y", "%m/%d/%y", strict=False)).to_dict()["d"]
        >>> [when and str(when) for when in found]
        ['2024-12-31 00:00:00', '2024-12-31 00:00:00', None]
        """
        for format in formats:
            if not isinstance(format, str):
                raise TypeError(f'a format must be a string such as "%Y-%m-%d", not {format!r}')
        if not formats:
            return self._expr.cast("datetime[us]", strict=strict)
        return call("strptime" if strict else "try_strptime", self._expr, *map(lit, formats))


def _literally(new: str, *, groups: bool = False) -> str:
    """Return a replacement for the engine, which also treats dollar signs specially; with Python's references to
    `groups`.
    """
    if not groups:
        return new.replace("$", "$$")
    return re.sub(r"\\(\d+)|\\(\\)|\$", lambda found: f"${{{found[1]}}}" if found[1] else found[2] or "$$", new)


class DateTimes:
    """Functions for dates, datetimes and durations."""

    def __init__(self, expr: Expr) -> None:
        self._expr = expr

    def _part(self, name: str) -> Expr:
        return call("date_part", lit(name), self._expr).alias(self._expr.output_name)

    def year(self) -> Expr:
        """Return the year."""
        return self._part("year")

    def quarter(self) -> Expr:
        """Return the quarter, 1 to 4."""
        return self._part("quarter")

    def month(self) -> Expr:
        """Return the month, 1 to 12."""
        return self._part("month")

    def week(self) -> Expr:
        """Return the ISO 8601 week, 1 to 53."""
        return self._part("week")

    def day(self) -> Expr:
        """Return the day of the month, 1 to 31."""
        return self._part("day")

    def weekday(self) -> Expr:
        """Return the day of the week; Monday is 0, as in ``datetime.date.weekday``."""
        return (self._part("dow") + 6) % 7

    def ordinal_day(self) -> Expr:
        """Return the day of the year, 1 to 366."""
        return self._part("doy")

    def hour(self) -> Expr:
        """Return the hour, 0 to 23."""
        return self._part("hour")

    def minute(self) -> Expr:
        """Return the minute, 0 to 59."""
        return self._part("minute")

    def second(self) -> Expr:
        """Return the second, 0 to 59."""
        return self._part("second").cast("int32")

    def epoch(self) -> Expr:
        """Return the seconds since 1970, including the fraction."""
        return self._part("epoch")

    def truncate(self, unit: str) -> Expr:
        """Round down to a ``"second"``, ``"minute"``, ``"hour"``, ``"day"``, ``"week"``, ``"month"``, ``"quarter"`` or
        ``"year"``.

        A date becomes a datetime in microseconds.
        """
        return call("date_trunc", lit(unit), self._expr).alias(self._expr.output_name)

    def date(self) -> Expr:
        """Return the date, without the time."""
        return self._expr.cast("date")

    def format(self, format: str) -> Expr:
        """Format as a string; `format` is as in ``strftime``."""
        unknown = [found for found in re.findall("%[-_0]?(.?)", format) if not found or found not in _STRFTIME]
        if unknown:
            raise DataSetError(f'"{format}" is not a valid format for strftime: "%{unknown[0]}" is unknown')
        # In the engine, %f means nanoseconds.
        return call(
            "to_char", self._expr, lit(re.sub("%(.)", lambda found: "%6f" if found[1] == "f" else found[0], format))
        )


class Lists:
    """List functions."""

    def __init__(self, expr: Expr) -> None:
        self._expr = expr

    def len(self) -> Expr:
        """Return the number of elements."""
        return call("cardinality", self._expr)

    def get(self, index: int) -> Expr:
        """Return element `index` (0 is the first, -1 the last); null if it does not exist."""
        return call("array_element", self._expr, lit(index + 1 if index >= 0 else index))

    def contains(self, value: object) -> Expr:
        """Test whether the list contains `value`."""
        return call("array_has", self._expr, as_value(value))

    def join(self, by: str) -> Expr:
        """Join the elements into one string, separated by `by`."""
        return call("array_to_string", self._expr, lit(by))

    def sort(self) -> Expr:
        """Sort in ascending order."""
        return call("array_sort", self._expr)

    def unique(self) -> Expr:
        """Return each distinct element once."""
        return call("array_distinct", self._expr)

"""Where the native code looks for intervals."""

from tidemill._tables.values import MonthDayNano

__all__ = ["MonthDayNano"]

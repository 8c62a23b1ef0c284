"""Texts of jobs and of others, for a terminal: none of them may move its cursor, change its title, or hide what is in them."""

from __future__ import annotations

import unicodedata

__all__ = ["plain"]

#: Controls, and characters that change the direction of text, or are not to be seen.
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def plain(text: str) -> str:
    r"""Return a line with escapes, as ``\x1b``, in the place of characters that a terminal would obey or not show.

    >>> plain("job \x1b[2J")
    'job \\x1b[2J'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        one.encode("unicode_escape").decode() if unicodedata.category(one) in _HIDDEN else one for one in text
    )

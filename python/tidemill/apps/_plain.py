"""Untrusted text for a terminal: it must not move the cursor, change the title, or hide its content."""

from __future__ import annotations

import unicodedata

__all__ = ["plain"]

#: Control characters, invisible characters, and those that change the direction of text.
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def plain(text: str) -> str:
    r"""Return a line in which escapes, such as ``\x1b``, replace characters that a terminal would interpret or not show.

    >>> plain("job \x1b[2J")
    'job \\x1b[2J'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        one.encode("unicode_escape").decode() if unicodedata.category(one) in _HIDDEN else one for one in text
    )

"""A library of plots: files of points are taken in, described, found again, changed in versions, and shared.

Points lie in folders of frames; all else is in a SQLite database beside them. ``docs/library.md`` is the guide.
"""

from __future__ import annotations

from tidemill.viz.library._cloud import Limits, UploadError
from tidemill.viz.library._library import Library
from tidemill.viz.library._records import Comment, Plot, Share, Version

__all__ = ["Comment", "Library", "Limits", "Plot", "Share", "UploadError", "Version"]

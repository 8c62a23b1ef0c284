"""A library of plots: files of points are imported, described, searched, changed in versions, and shared.

Points are stored in folders of frames; everything else is in a SQLite database beside them. ``docs/library.md`` is the
guide.
"""

from __future__ import annotations

from tidemill.viz.library._cloud import Limits, UploadError
from tidemill.viz.library._library import Library
from tidemill.viz.library._records import Comment, Plot, Share, Version

__all__ = ["Comment", "Library", "Limits", "Plot", "Share", "UploadError", "Version"]

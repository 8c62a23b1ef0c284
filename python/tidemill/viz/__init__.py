"""Animated points in the browser: write frames into a folder, and show them with ``tidemill view FOLDER``.

>>> import numpy as np, tempfile
>>> from tidemill import viz
>>> folder = tempfile.mkdtemp()
>>> with viz.FrameWriter(folder + "/map", title="Two steps") as writer:
...     writer.write_frame(np.zeros((2, 3)), ids=["a", "b"], time="Monday")
...     writer.write_frame(np.ones((2, 3)), ids=["a", "b"], time="Tuesday")
>>> viz.FrameReader(folder + "/map")[1].time
'Tuesday'

``docs/viewer.md`` describes the page and the file format; ``docs/library.md`` is about libraries of plots.
"""

from __future__ import annotations

from tidemill.viz._export import export_html
from tidemill.viz._format import FrameError
from tidemill.viz._read import Frame, FrameReader
from tidemill.viz._server import Server
from tidemill.viz._show import View, save_html, show
from tidemill.viz._trees import minimum_spanning_tree, place_tree, read_newick
from tidemill.viz._write import GLYPHS, FrameWriter
from tidemill.viz.library import Library

__all__ = [
    "GLYPHS",
    "Frame",
    "FrameError",
    "FrameReader",
    "FrameWriter",
    "Library",
    "Server",
    "View",
    "export_html",
    "minimum_spanning_tree",
    "place_tree",
    "read_newick",
    "save_html",
    "show",
]

"""Time series as moving points: clean a long table, divide it into windows, and embed every window in space.

>>> import numpy as np
>>> from tidemill import series
>>> days = np.arange("2024-01-01", "2024-01-31", dtype="datetime64[D]").astype("datetime64[us]")
>>> steps = np.random.default_rng(0).normal(scale=0.01, size=(len(days), 6))
>>> panel = series.Panel(days, np.array(list("abcdef")), np.exp(steps.cumsum(axis=0)))
>>> frames = list(series.embed(panel, series.windows(panel.times, "20d", "5d")))
>>> [frame.window.label for frame in frames], frames[0].positions.shape
(['2024-01-20', '2024-01-25', '2024-01-30'], (6, 3))

`clean` turns a file, a DataSet or an Arrow table into a `Panel` and reports its changes; `windows` computes windows
over its times; `embed` computes a `Frame` of each; `FrameFolder` writes them for ``tidemill view``. Every worker of a
job calls these functions. ``tidemill series`` is the command; ``docs/series.md`` is the guide.
"""

from __future__ import annotations

from tidemill.series._align import read_positions
from tidemill.series._clean import clean
from tidemill.series._distance import REFERENCES, distances, references, weights
from tidemill.series._embed import Embedder, Frame, embed
from tidemill.series._follow import Follower
from tidemill.series._frames import FrameFolder, Groups, read_groups
from tidemill.series._market import write_market
from tidemill.series._panel import Panel, Segment
from tidemill.series._read import SeriesError
from tidemill.series._rules import Report, Rules
from tidemill.series._windows import Window, windows

__all__ = [
    "REFERENCES",
    "Embedder",
    "Follower",
    "Frame",
    "FrameFolder",
    "Groups",
    "Panel",
    "Report",
    "Rules",
    "Segment",
    "SeriesError",
    "Window",
    "clean",
    "distances",
    "embed",
    "read_groups",
    "read_positions",
    "references",
    "weights",
    "windows",
    "write_market",
]

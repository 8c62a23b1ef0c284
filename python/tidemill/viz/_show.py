"""Shows arrays in the browser, from scripts and notebooks."""

from __future__ import annotations

import html
import tempfile
import webbrowser
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tidemill.dataset import DataSet
from tidemill.viz._export import export_html
from tidemill.viz._format import FrameError
from tidemill.viz._server import Server
from tidemill.viz._write import FrameWriter, check_size

__all__ = ["View", "show"]

#: Most that a page in a notebook may take: it is kept in the notebook's file, and sent whole.
_EMBED_BYTES_MAX = 32 << 20


class View:
    """A view that is open until `close`, or until the program ends. A notebook shows it inline.

    Attributes
    ----------
    url : str
        What a browser of this machine opens, token included.
    """

    def __init__(self, server: Server, folder: tempfile.TemporaryDirectory[str], page: str | None = None) -> None:
        self._server, self._folder, self._page = server, folder, page
        self.url = server.url

    def save_html(self, path: str | PathLike[str]) -> None:
        """Write the page with all frames into one HTML file, which opens anywhere without a server; as `export_html`."""
        export_html(self._folder.name, path)

    def close(self) -> None:
        """End the server and remove the frames."""
        self._server.close()
        self._folder.cleanup()

    def wait(self) -> None:
        """Keep a script from ending, until Ctrl-C."""
        try:
            self._server.wait()
        except KeyboardInterrupt:
            self.close()

    def _repr_html_(self) -> str:
        """Show the page in a notebook: by its URL, which the browser has to reach, or with ``embed=True`` as part of the notebook."""
        source = f'src="{html.escape(self.url)}"' if self._page is None else f'srcdoc="{html.escape(self._page)}"'
        return f'<iframe {source} width="100%" height="620" style="border:0" allowfullscreen></iframe>'

    def __repr__(self) -> str:
        return f"View({self.url!r})"


def show(
    points: ArrayLike | None = None,
    *,
    frames: Sequence[ArrayLike] | None = None,
    ids: Sequence[Any] | None = None,
    labels: Sequence[str] | None = None,
    groups: ArrayLike | Mapping[str, ArrayLike] | None = None,
    values: ArrayLike | Mapping[str, ArrayLike] | None = None,
    title: str = "",
    open_browser: bool = False,
    embed: bool = False,
) -> View:
    """Show points in the browser, or frames of them that it moves between.

    Parameters
    ----------
    points : array-like or table of shape (n, d), optional
        With one or two columns the rest is 0; of more than three, the first three principal components are shown.
    frames : sequence of array-like of shape (n, d), optional
        In place of `points`: where the same points are, one time after the other.
    ids, labels : sequence of n, optional
        As in `FrameWriter.write_frame`.
    groups : array-like of n, or mapping of names to such, optional
        Categories, such as ``labels_`` of a clustering.
    values : array-like of n, or mapping of names to such, optional
        Numbers to colour by.
    title : str, default=""
    open_browser : bool, default=False
        Open a tab; else print or show what is returned, which has the ``url``.
    embed : bool, default=False
        In a notebook show a page that has the frames in it, and needs no server: where the browser does not reach the notebook's host,
        as with JupyterHub, and in saved notebooks. At most 32 MiB; 6 bytes for each point and frame make 8 of them.

    Returns
    -------
    View

    Raises
    ------
    ValueError
        Shapes that do not fit, or a point that is not finite; it names frame and row.
    TypeError
        What is no array of numbers, such as an estimator.
    FrameError
        A number of more than 1e37 in size, what `FrameWriter.write_frame` refuses, or more than can be embedded.

    Examples
    --------
    ``tm.viz.show(x, groups=KMeans(8).fit_predict(x))`` as the last line of a notebook's cell.
    """
    if (points is None) == (frames is None):
        raise ValueError("show points or frames: give one of them")
    given = [points] if frames is None else frames
    arrays = [_points("points" if frames is None else f"frame {number}", frame) for number, frame in enumerate(given)]
    if not arrays:
        raise ValueError("frames is empty: give at least one")
    for number, array in enumerate(arrays):
        if array.shape[1] != arrays[0].shape[1]:
            raise ValueError(f"frame {number} has {array.shape[1]} columns, the first {arrays[0].shape[1]}")
    if ids is not None and any(isinstance(name, list | tuple | np.ndarray) for name in ids):
        raise ValueError(
            "ids is one list of names, for all frames; where other points are in each, write them with FrameWriter and its ids="
        )
    folder = tempfile.TemporaryDirectory(prefix="tidemill-view-")
    try:
        with FrameWriter(Path(folder.name), title=title, mode="w") as writer:
            project = _projection(arrays[0])
            for array in arrays:
                writer.write_frame(
                    project(array),
                    ids=ids,
                    labels=labels,
                    groups=_named("group", groups),
                    values=_named("value", values),
                )
        page = _embedded(Path(folder.name)) if embed else None
        server = Server(folder.name)
    except BaseException:
        folder.cleanup()
        raise
    view = View(server, folder, page)
    if open_browser:
        webbrowser.open(view.url)
    return view


def _points(name: str, given: Any) -> NDArray[np.float64]:
    """Return the positions of a frame, checked."""
    try:
        # A query runs here.
        array = np.asarray(given.collect() if isinstance(given, DataSet) else given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"{name}: a {type(given).__name__} is given that is no array of numbers of shape (n, d), a row for each point: {error}. "
            "Of an estimator, show the data it was fitted to, and groups=estimator.labels_"
        ) from None
    if array.ndim != 2 or not array.shape[1]:
        column = "; reshape(-1, 1) makes a column of it" if array.ndim == 1 else ""
        raise ValueError(f"{name} has shape {array.shape}, not (n, d), a row for each point{column}")
    bad = ~np.isfinite(array).all(axis=1)
    if bad.any():
        raise ValueError(f"{name}, row {int(bad.argmax())} is not finite; leave out points that have no position")
    # Before components are found: squares of larger numbers are infinite.
    check_size(name, "a coordinate", array)
    return array


def _embedded(folder: Path) -> str:
    """The page with the frames in it."""
    with tempfile.TemporaryDirectory(prefix="tidemill-page-") as made:
        path = Path(made) / "page.html"
        export_html(folder, path)
        size = path.stat().st_size
        if size > _EMBED_BYTES_MAX:
            raise FrameError(
                f"the page has {size >> 20} MiB, and at most {_EMBED_BYTES_MAX >> 20} can be part of a notebook: show fewer points or frames, or "
                "leave embed away, and save_html() a file"
            )
        return path.read_text(encoding="utf-8")


def _named(name: str, columns: Any) -> Mapping[str, ArrayLike] | None:
    return columns if columns is None or isinstance(columns, Mapping) else {name: columns}


def _projection(first: Any) -> Any:
    """Return a function onto three columns: the same for all frames, so that what moves has moved."""
    width = first.shape[1]
    if width <= 3:
        return lambda array: np.pad(array, ((0, 0), (0, 3 - width)))
    centre = first.mean(axis=0)
    _, directions = np.linalg.eigh((first - centre).T @ (first - centre))
    return lambda array: (array - centre) @ directions[:, :-4:-1]

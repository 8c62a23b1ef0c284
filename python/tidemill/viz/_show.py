"""Shows arrays in the browser, from scripts and notebooks."""

from __future__ import annotations

import html
import tempfile
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tidemill._membership import current_rank
from tidemill.dataset import DataSet, Table
from tidemill.viz._columns import by_name
from tidemill.viz._export import export_html
from tidemill.viz._format import FrameError
from tidemill.viz._server import Server
from tidemill.viz._write import FrameWriter, check_size

__all__ = ["View", "save_html", "show"]

#: Positions of points: an array, or a table whose columns can be named.
Points = ArrayLike | DataSet | Table
#: Categories or numbers of points: an array, arrays by name or for each frame; or for a table, names of columns.
Columns = ArrayLike | Mapping[str, ArrayLike] | Sequence[ArrayLike] | str | Sequence[str] | Mapping[str, str]

#: Maximum size of a page in a notebook, which is stored in the notebook's file and sent as a whole.
_EMBED_BYTES_MAX = 32 << 20


class View:
    """A view that stays open until `close`, or until the program ends. Notebooks show it inline.

    Attributes
    ----------
    url : str
        URL for a browser on this machine, including the token.
    """

    def __init__(self, server: Server, folder: tempfile.TemporaryDirectory[str], page: str | None = None) -> None:
        self._server, self._folder, self._page = server, folder, page
        self.url = server.url

    def save_html(self, path: str | PathLike[str]) -> None:
        """Write the page with all frames to one HTML file, which opens anywhere without a server; see `export_html`."""
        export_html(self._folder.name, path)

    def close(self) -> None:
        """Stop the server and remove the frames."""
        self._server.close()
        self._folder.cleanup()

    def wait(self) -> None:
        """Keep a script from ending until Ctrl-C."""
        try:
            self._server.wait()
        except KeyboardInterrupt:
            self.close()

    def _repr_html_(self) -> str:
        """Show the page in a notebook: by its URL, which the browser must reach, or with ``embed=True`` as part of the
        notebook.
        """
        source = f'src="{html.escape(self.url)}"' if self._page is None else f'srcdoc="{html.escape(self._page)}"'
        return f'<iframe {source} width="100%" height="620" style="border:0" allowfullscreen></iframe>'

    def __repr__(self) -> str:
        return f"View({self.url!r})"


def show(
    points: Points | None = None,
    *,
    frames: Sequence[ArrayLike] | None = None,
    times: Sequence[object] | None = None,
    ids: Sequence[Any] | str | None = None,
    labels: Sequence[str] | str | None = None,
    groups: Columns | None = None,
    values: Columns | None = None,
    coordinates: Sequence[str] | None = None,
    title: str = "",
    open_browser: bool = False,
    embed: bool = False,
) -> View:
    """Show points in the browser, or an animation of several frames.

    Parameters
    ----------
    points : array-like or table of shape (n, d), optional
        With one or two columns, missing coordinates are 0; with more than three, the first three principal components
        are shown. For a DataSet, the query runs, which is an action: every worker calls this.
    frames : sequence of array-like of shape (n, d), optional
        Instead of `points`: positions of the same points at consecutive times.
    times : sequence of objects, optional
        Name of each of `frames`, as text; by default their numbers.
    ids, labels : sequence of n, or str, optional
        As in `FrameWriter.write_frame`. For a table, the name of a column.
    groups : array-like of n, or mapping of names to such, or table, optional
        Categories, such as ``labels_`` of a clustering. With `frames`, if categories change, pass a sequence of arrays,
        one for each frame, instead of each array. For a table, the name of a column, a list of names, or a mapping from
        titles to names.
    values : array-like of n, or mapping of names to such, or table, optional
        Numbers to color by; for several frames and for a table as in `groups`.
    coordinates : sequence of str, optional
        For a table, the columns with the positions of points. By default, if other columns are named, all other numeric
        columns.
    title : str, default=""
    open_browser : bool, default=False
        Open a browser tab; otherwise print or show the result, which has the ``url``.
    embed : bool, default=False
        In a notebook, show a page that contains the frames and needs no server: for saved notebooks, and if the browser
        cannot reach the notebook's host, as with JupyterHub. At most 32 MiB; each point and frame takes 6 bytes, which
        become 8 in the page.

    Returns
    -------
    View

    Raises
    ------
    ValueError
        If shapes or numbers of frames do not match, or a point is not finite; the message names frame and row.
    TypeError
        If an argument is not an array of numbers, such as an estimator.
    FrameError
        If a number exceeds 1e37 in magnitude, `FrameWriter.write_frame` rejects the data, or there is too much to
        embed.

    Examples
    --------
    ``tm.viz.show(x, groups=KMeans(8).fit_predict(x))`` as the last line of a notebook's cell;
    ``tm.viz.show(model.predict(data), ids="id", groups="cluster")`` of a DataSet;
    ``tm.viz.show(frames=[x] * 3, groups=[labels_1, labels_2, labels_3], times=["1 pass", "2 passes", "3 passes"])``.
    """
    folder = tempfile.TemporaryDirectory(prefix="tidemill-view-")
    try:
        _write(Path(folder.name), points, frames, times, ids, labels, groups, values, coordinates, title)
        page = _embedded(Path(folder.name)) if embed else None
        server = Server(folder.name)
    except BaseException:
        folder.cleanup()
        raise
    view = View(server, folder, page)
    if open_browser:
        webbrowser.open(view.url)
    return view


def save_html(
    path: str | PathLike[str],
    points: Points | None = None,
    *,
    frames: Sequence[ArrayLike] | None = None,
    times: Sequence[object] | None = None,
    ids: Sequence[Any] | str | None = None,
    labels: Sequence[str] | str | None = None,
    groups: Columns | None = None,
    values: Columns | None = None,
    coordinates: Sequence[str] | None = None,
    title: str = "",
) -> None:
    """Write the page of `show` to one HTML file, which opens anywhere without a server.

    Parameters
    ----------
    path : path
        Output file; an existing file is replaced. For a DataSet, all workers run the query and worker 0 writes the
        file.
    points, frames, times, ids, labels, groups, values, coordinates, title
        As in `show`.

    Raises
    ------
    ValueError, TypeError, FrameError
        As in `show` and `export_html`.
    """
    with tempfile.TemporaryDirectory(prefix="tidemill-view-") as folder:
        _write(Path(folder), points, frames, times, ids, labels, groups, values, coordinates, title)
        # All workers run the query of a DataSet, but one page is enough.
        if not isinstance(points, DataSet) or current_rank() == 0:
            export_html(folder, path)


def _write(
    folder: Path,
    points: Any,
    frames: Any,
    times: Any,
    ids: Any,
    labels: Any,
    groups: Any,
    values: Any,
    coordinates: Sequence[str] | None,
    title: str,
) -> None:
    """Check the arguments of `show`, and write them as frames into a folder."""
    if (points is None) == (frames is None):
        raise ValueError("pass either points or frames")
    if points is not None:
        # This runs the query of a DataSet.
        points = points.collect() if isinstance(points, DataSet) else points
        points, ids, labels, groups, values = by_name(points, ids, labels, groups, values, coordinates)
    elif (
        isinstance(ids, str)
        or isinstance(labels, str)
        or isinstance(groups, str)
        or isinstance(values, str)
        or coordinates
    ):
        raise ValueError("names of columns work with points, not with frames: give arrays")
    given = [points] if frames is None else frames
    arrays = [_points("points" if frames is None else f"frame {number}", frame) for number, frame in enumerate(given)]
    if not arrays:
        raise ValueError("frames is empty: give at least one")
    for number, array in enumerate(arrays):
        if array.shape[1] != arrays[0].shape[1]:
            raise ValueError(f"frame {number} has {array.shape[1]} columns, the first {arrays[0].shape[1]}")
    names = None if times is None else [str(time) for time in times]
    if names is not None and len(names) != len(arrays):
        raise ValueError(f"times has {len(names)} names for {len(arrays)} frame{'s' * (len(arrays) != 1)}")
    moving = None if frames is None else len(arrays)
    categories, numbers = _by_frame("group", groups, moving), _by_frame("value", values, moving)
    if ids is not None and any(isinstance(name, list | tuple | np.ndarray) for name in ids):
        raise ValueError(
            "ids is one list of names for all frames; if frames have different points, write them with FrameWriter and its ids="
        )
    with FrameWriter(folder, title=title, mode="w") as writer:
        project = _projection(arrays[0])
        for number, array in enumerate(arrays):
            writer.write_frame(
                project(array),
                time=None if names is None else names[number],
                ids=ids,
                labels=labels,
                groups=categories(number),
                values=numbers(number),
            )


def _points(name: str, given: Any) -> NDArray[np.float64]:
    """Return the positions of a frame, checked."""
    try:
        # This runs the query of a DataSet.
        array = np.asarray(given.collect() if isinstance(given, DataSet) else given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"{name}: a {type(given).__name__} is not an array of numbers of shape (n, d), a row for each point: {error}. "
            "Of an estimator, show the data it was fitted to, and groups=estimator.labels_"
        ) from None
    if array.ndim != 2 or not array.shape[1]:
        column = "; reshape(-1, 1) makes a column of it" if array.ndim == 1 else ""
        raise ValueError(f"{name} has shape {array.shape}, not (n, d), a row for each point{column}")
    bad = ~np.isfinite(array).all(axis=1)
    if bad.any():
        raise ValueError(f"{name}, row {int(bad.argmax())} is not finite; leave out points that have no position")
    # Checked before components are computed, since squares of larger numbers are infinite.
    check_size(name, "a coordinate", array)
    return array


def _embedded(folder: Path) -> str:
    """Return the page with the frames in it."""
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


def _by_frame(name: str, given: Any, frames: int | None) -> Callable[[int], dict[str, Any]]:
    """Return a function that gives the columns of each frame; `frames` is None if there is a single array of points,
    and so no choice.
    """
    columns = _named(name, given)
    changing = {column for column, array in columns.items() if frames is not None and _is_sequence(array)}
    for column in changing:
        if len(columns[column]) != frames:
            raise ValueError(f"{name} {column!r} has arrays for {len(columns[column])} frames, but there are {frames}")
    return lambda frame: {column: array[frame] if column in changing else array for column, array in columns.items()}


def _named(name: str, given: Any) -> dict[str, Any]:
    """Return columns by their names: those of a mapping or of a table, or one of this name."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return {str(column): given[column] for column in given}
    # pandas, Polars and Tidemill have `columns`; in Arrow, these are the arrays.
    columns = getattr(given, "column_names", getattr(given, "columns", None))
    if columns is not None and hasattr(given, "__getitem__"):
        return {str(column): given[column] for column in columns}
    return {name: given}


def _is_sequence(given: Any) -> bool:
    """Return whether these are arrays, not categories or numbers."""
    if isinstance(given, list | tuple):
        return len(given) > 0 and np.ndim(given[0]) == 1
    return isinstance(given, np.ndarray) and given.ndim == 2


def _projection(first: Any) -> Any:
    """Return a projection onto three columns: the same for all frames, so that points move only if they have changed."""
    width = first.shape[1]
    if width <= 3:
        return lambda array: np.pad(array, ((0, 0), (0, 3 - width)))
    centre = first.mean(axis=0)
    _, directions = np.linalg.eigh((first - centre).T @ (first - centre))
    return lambda array: (array - centre) @ directions[:, :-4:-1]

"""JSON of points, and of frames of points.

    {"title": "...",
     "clusters": [{"key": 1, "label": "Glomus", "color": "#ff0000", "visible": true}],
     "points": [{"id": "a", "x": 0, "y": 0, "z": 0, "cluster": 1, "label": "...", "height": 2.5}],
     "edges": [["a", "b"]]}

A point is an object (additional fields become values and groupings, like columns of a table) or a list of two or three
numbers. Instead of ``points`` there may be ``frames``: a list of ``{"time": ..., "points": [...], "edges": [...]}``. A
list alone means points.
"""

from __future__ import annotations

import json
import re
from typing import IO, Any, NoReturn

from tidemill.viz.library._cloud import Cloud, Limits, UploadError, clouds_of_columns

__all__ = ["BYTES_MAX", "read_json"]

#: JSON is parsed in memory as a whole, which takes a multiple of its size.
BYTES_MAX = 128 << 20


def read_json(file: str, data: IO[bytes], limits: Limits) -> list[Cloud]:
    """Read JSON: a cloud for each frame.

    Raises
    ------
    UploadError
        Naming line and column, or the field.
    """
    text = data.read(BYTES_MAX + 1)
    if len(text) > BYTES_MAX:
        raise UploadError(
            f"{file}: JSON can have at most {BYTES_MAX >> 20} MiB; use CSV or Parquet, which have no limit"
        )

    def refuse(word: str) -> NoReturn:
        raise UploadError(f"{file}: {word} is not JSON; leave out points that have no position")

    try:
        told = json.loads(text.decode("utf-8-sig"), parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise UploadError(f"{file}, line {error.lineno}, column {error.colno}: this is not JSON: {error.msg}") from None
    except UnicodeDecodeError:
        raise UploadError(f"{file}: it is not UTF-8; save the file in that encoding") from None
    except (RecursionError, ValueError) as error:
        if isinstance(error, UploadError):
            raise
        raise UploadError(f"{file}: lists are nested too deep, or a number is too long") from None
    if isinstance(told, list):
        told = {"points": told}
    if not isinstance(told, dict) or ("points" in told) == ("frames" in told):
        raise UploadError(f'{file}: there must be a list "points", or a list "frames" of objects with "points"')
    names, changes = _clusters(file, told.get("clusters", []))
    frames = told.get("frames", [told])
    if not isinstance(frames, list) or not frames or not all(isinstance(frame, dict) for frame in frames):
        raise UploadError(f'{file}: "frames" is a list of objects with "points"')
    clouds = []
    for number, frame in enumerate(frames):
        place = f"{file}, frame {number}" if "frames" in told else file
        made = _frame(place, frame, names, limits)
        for cloud in made if "frames" in told else []:
            cloud.time = str(frame.get("time", number)) if len(made) == 1 else cloud.time
        clouds += made
    title = told.get("title", "")
    clouds[0].title, clouds[0].changes = title if isinstance(title, str) else "", changes
    return clouds


def _frame(file: str, frame: dict[str, Any], names: dict[str, str], limits: Limits) -> list[Cloud]:
    points = frame.get("points")
    if not isinstance(points, list) or not points:
        raise UploadError(f'{file}: "points" is a list of at least one point')
    if len(points) > limits.points:
        raise UploadError(f"{file}: it has more than {limits.points:,} points, which is the limit of a frame")
    columns: dict[str, list[Any]] = {}
    for number, point in enumerate(points):
        if isinstance(point, list) and len(point) in (2, 3):
            point = dict(zip("xyz", point, strict=False))
        if not isinstance(point, dict):
            raise UploadError(f"{file}, point {number}: a point is an object, or a list of two or three numbers")
        for name, value in point.items():
            if isinstance(value, (dict, list)):
                raise UploadError(f"{file}, point {number}: {name[:40]!r} is neither text nor number")
            if name not in columns:
                if len(columns) == _COLUMNS_MAX:
                    raise UploadError(f"{file}: points have more than {_COLUMNS_MAX} different fields")
                columns[name] = [None] * len(points)
            columns[name][number] = value
    for name in ("cluster", "clusterkey"):
        if name in columns:
            columns[name] = [names.get(_key(value), value) for value in columns[name]]
    try:
        clouds = clouds_of_columns(file, columns)
    except OverflowError:
        raise UploadError(f"{file}: a number is too large") from None
    edges = frame.get("edges")
    if edges is not None:
        if not isinstance(edges, list) or not all(isinstance(edge, list) and len(edge) == 2 for edge in edges):
            raise UploadError(f'{file}: "edges" is a list of pairs of ids')
        for cloud in clouds:
            cloud.edges = [(_key(begin), _key(end)) for begin, end in edges]
    return clouds


_COLUMNS_MAX = 256


def _clusters(file: str, clusters: Any) -> tuple[dict[str, str], list[dict[str, Any]]]:
    if not isinstance(clusters, list):
        raise UploadError(f'{file}: "clusters" is a list of objects')
    names: dict[str, str] = {}
    changes: list[dict[str, Any]] = []
    for number, cluster in enumerate(clusters):
        if not isinstance(cluster, dict) or not isinstance(cluster.get("key"), (int, str)):
            raise UploadError(f'{file}, cluster {number}: it has no "key"')
        label = cluster.get("label", "")
        name = str(label).strip() or _key(cluster["key"])
        name = name if name not in names.values() else f"{name} ({_key(cluster['key'])})"
        names[_key(cluster["key"])] = name
        colour = cluster.get("color", cluster.get("colour"))
        about = {"grouping": "cluster", "category": name}
        if colour is not None:
            if not isinstance(colour, str) or not re.fullmatch(r"#[0-9a-fA-F]{6}", colour):
                raise UploadError(f'{file}, cluster {number}: "color" is a text such as "#ff8000"')
            changes.append({"set": "colour", **about, "value": colour.lower()})
        if cluster.get("visible") in (False, 0):
            changes.append({"set": "hidden", **about, "value": True})
    return names, changes


def _key(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)

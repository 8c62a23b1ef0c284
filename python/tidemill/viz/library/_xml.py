"""The XML of points and clusters of PlotViz and WebPlotViz (Indiana University), files called ``.pviz`` or ``.xml``.

    <plotviz>
      <plot><title>Fungi</title></plot>
      <clusters>
        <cluster><key>1</key><label>Glomus</label><visible>1</visible><color r="255" g="0" b="0" a="255"/></cluster>
      </clusters>
      <points>
        <point><key>0</key><clusterkey>1</clusterkey><label>AB1</label><location x="0.1" y="0.2" z="0.3"/></point>
      </points>
      <edges><edge><key>0</key><vertices><vertex key="0"/><vertex key="5"/></vertices></edge></edges>
    </plotviz>

Other elements (camera, size and shape of clusters, point size) are ignored. A document type is refused, since it could
define entities that exhaust memory or read files.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import IO, Any, NoReturn
from xml.parsers import expat

import numpy as np

from tidemill.viz.library._cloud import Cloud, Limits, UploadError

__all__ = ["read_xml"]

_DEPTH_MAX = 32
_TEXT_MAX = 10_000


def read_xml(file: str, data: IO[bytes], limits: Limits) -> list[Cloud]:
    """Read a file of points and clusters: one cloud.

    Raises
    ------
    UploadError
        If the file is not XML, has another structure, or lacks a field; the message gives the line.
    """
    reader = _Reader(file, limits)
    parser = expat.ParserCreate()
    parser.buffer_text = True
    reader.line = lambda: parser.CurrentLineNumber
    parser.StartElementHandler = reader.begin
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text

    def refuse(*_: Any) -> NoReturn:
        raise UploadError(
            f"{file}, line {parser.CurrentLineNumber}: a document type or entity is not allowed; remove it"
        )

    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.ExternalEntityRefHandler = refuse
    try:
        while part := data.read(1 << 18):
            parser.Parse(part, False)
        parser.Parse(b"", True)
    except expat.ExpatError as error:
        raise UploadError(f"{file}, line {error.lineno}: this is not XML: {expat.ErrorString(error.code)}") from None
    except (ValueError, LookupError) as error:
        if isinstance(error, UploadError):
            raise
        # The encoding is unknown.
        raise UploadError(f"{file}: this XML cannot be read: {error}") from None
    return [reader.cloud()]


class _Reader:
    """Handles elements as they come; `fields` holds the fields of the current point or cluster."""

    def __init__(self, file: str, limits: Limits) -> None:
        self.file, self.limits = file, limits
        self.line: Callable[[], int] = lambda: 0
        self.path: list[str] = []
        self.words: list[str] = []
        self.length = 0
        self.fields: dict[str, str] = {}
        self.place: tuple[float, float, float] | None = None
        self.colour: str | None = None
        self.title = ""
        self.clusters: dict[str, tuple[str, str | None, bool]] = {}
        self.places: list[tuple[float, float, float]] = []
        self.line_of: dict[str, int] = {}
        self.cluster_of: list[str] = []
        self.labels: list[str] = []
        self.vertices: list[str] = []
        self.edges: list[tuple[str, str]] = []

    def begin(self, name: str, attributes: dict[str, str]) -> None:
        self.path.append(name)
        self.words, self.length = [], 0
        if len(self.path) == 1 and name != "plotviz":
            raise self.wrong(f"the outermost element is <{name[:40]}>, not <plotviz>")
        if len(self.path) > _DEPTH_MAX:
            raise self.wrong(f"elements are nested more than {_DEPTH_MAX} deep")
        inner = self.path[1:]
        if inner in (["points", "point"], ["clusters", "cluster"], ["edges", "edge"]):
            self.fields, self.place, self.colour, self.vertices = {}, None, None, []
        elif inner == ["points", "point", "location"]:
            self.place = (self.number(attributes, "x"), self.number(attributes, "y"), self.number(attributes, "z"))
        elif inner == ["clusters", "cluster", "color"]:
            self.colour = "#" + "".join(f"{self.shade(attributes, part):02x}" for part in "rgb")
        elif inner == ["edges", "edge", "vertices", "vertex"]:
            self.vertices.append(attributes.get("key", ""))

    def end(self, name: str) -> None:
        inner, text = self.path[1:], "".join(self.words).strip()
        self.path.pop()
        self.words, self.length = [], 0
        if len(inner) == 3 and inner[:2] in (["points", "point"], ["clusters", "cluster"]):
            self.fields[name] = text
        elif inner == ["plot", "title"]:
            self.title = text
        elif inner == ["points", "point"]:
            self.point()
        elif inner == ["clusters", "cluster"]:
            self.cluster()
        elif inner == ["edges", "edge"]:
            if len(self.vertices) != 2:
                raise self.wrong(f"an edge has two vertices, not {len(self.vertices)}")
            self.edges.append((self.vertices[0], self.vertices[1]))

    def text(self, text: str) -> None:
        self.length += len(text)
        if self.length > _TEXT_MAX:
            raise self.wrong(f"the text in <{self.path[-1][:40]}> is longer than {_TEXT_MAX} characters")
        self.words.append(text)

    def point(self) -> None:
        key = self.field("point", "key")
        if self.place is None:
            raise self.wrong(f"point {key[:40]!r} has no <location x= y= z=/>")
        if self.line_of.setdefault(key, self.line()) != self.line() or len(self.line_of) == len(self.places):
            raise self.wrong(f"the point {key[:40]!r} already appeared, in line {self.line_of[key]}")
        if len(self.places) == self.limits.points:
            raise self.wrong(f"there are more than {self.limits.points:,} points, which is the limit of a frame")
        self.places.append(self.place)
        self.cluster_of.append(self.fields.get("clusterkey", ""))
        self.labels.append(self.fields.get("label", ""))

    def cluster(self) -> None:
        key = self.field("cluster", "key")
        if key in self.clusters:
            raise self.wrong(f"the cluster {key[:40]!r} appears twice")
        shown = self.fields.get("visible", "1").lower() not in ("0", "false")
        self.clusters[key] = (self.fields.get("label", ""), self.colour, shown)

    def cloud(self) -> Cloud:
        if not self.places:
            raise UploadError(f"{self.file}: there is no <point> in <points> of <plotviz>")
        # Two clusters with the same label are still two groups.
        labels = [label for label, _, _ in self.clusters.values()]
        names = {
            key: label if label and labels.count(label) == 1 else f"{label} ({key})" if label else key
            for key, (label, _, _) in self.clusters.items()
        }
        changes: list[dict[str, Any]] = []
        for key, (_, colour, shown) in self.clusters.items():
            about = {"grouping": "cluster", "category": names[key]}
            if colour is not None:
                changes.append({"set": "colour", **about, "value": colour})
            if not shown:
                changes.append({"set": "hidden", **about, "value": True})
        return Cloud(
            np.array(self.places),
            list(self.line_of),
            self.labels if any(self.labels) else None,
            {"cluster": [names.get(key, key) for key in self.cluster_of]},
            edges=self.edges or None,
            title=self.title,
            changes=changes,
        )

    def field(self, of: str, name: str) -> str:
        if not self.fields.get(name):
            raise self.wrong(f"a {of} has no <{name}>")
        return self.fields[name]

    def number(self, attributes: dict[str, str], name: str) -> float:
        try:
            number = float(attributes[name])
        except (KeyError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise self.wrong(f"{name} of a location is {attributes.get(name, '')[:40]!r}, which is not a finite number")
        return number

    def shade(self, attributes: dict[str, str], name: str) -> int:
        word = attributes.get(name, "")
        if not (word.isascii() and word.isdigit() and len(word) < 4 and int(word) < 256):
            raise self.wrong(f"{name} of a color is {word[:40]!r}, not a number from 0 to 255")
        return int(word)

    def wrong(self, what: str) -> UploadError:
        return UploadError(f"{self.file}, line {self.line()}: {what}")

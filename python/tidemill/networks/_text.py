"""Networks as text: edge lists as of SNAP, DIMACS, Matrix Market and METIS.

Numbers are parsed by a kernel, a piece of the file at a time; what is bad is told by file and line.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from tidemill._needs import needed
from tidemill._tidemill import network_parse
from tidemill.ml._threads import pool
from tidemill.networks import _memory

__all__ = ["Links", "Share", "coordinates", "dimacs", "edge_list", "matrix_market", "metis", "opened"]

#: How much of a file is parsed at a time.
PIECE_BYTES = 64 << 20


@dataclass
class Links:
    """What a file says: the ends of links, their weights, and what kind of network it is."""

    sources: NDArray[Any]
    targets: NDArray[Any]
    weights: NDArray[np.float64] | None
    directed: bool = True
    #: Ids of all nodes where the format has them, also of those without links: how many, from which on.
    nodes: NDArray[Any] | None = None
    attributes: dict[str, Any] = field(default_factory=dict)


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading bytes; what is compressed (.gz, .bz2, .xz, .zst) is decompressed.

    Raises
    ------
    ModuleNotFoundError
        For .zst, without the package zstandard.
    ValueError
        If the compressed data is damaged.
    """
    suffix = path.suffix.lower()
    if suffix == ".zst":
        stream = needed("zstandard", f"reading {path.name}").open(path, "rb")
    elif suffix in (".gz", ".bz2", ".xz"):
        module = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma"}[suffix]
        stream = needed(module, f"reading {path.name}").open(path, "rb")
    else:
        stream = path.open("rb")
    with stream:
        try:
            yield cast(IO[bytes], stream)
        except (EOFError, zlib.error) as error:
            raise ValueError(f"{path}: the compressed data is damaged: {error}") from error


def _pieces(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield pieces of whole lines."""
    rest = b""
    while block := stream.read(PIECE_BYTES):
        block = rest + block if rest else block
        end = block.rfind(b"\n") + 1
        rest = block[end:]
        if end:
            yield block[:end] if rest else block
    if rest:
        yield rest


def _parsed(
    path: Path,
    pieces: Iterator[bytes],
    weighted: bool,
    first_line: int = 1,
    *,
    workers: int | None = None,
    **options: Any,
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float64] | None]:
    """Parse lines with two numbers, and a third if `weighted`; see `network_parse`. With `workers`, they are a share of one of these."""
    found = []
    line, links = first_line, 0
    for piece in pieces:
        try:
            sources, targets, weights, lines = network_parse(pool(), piece, weighted, first_line=line, **options)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        found.append((sources, targets, weights))
        line, links = line + lines, links + len(sources)
        _memory.check(str(path), links * (workers or 1), weighted=weighted, workers=workers)
    if not found:
        none = np.empty(0, np.int64)
        return none, none, np.empty(0) if weighted else None
    columns = list(zip(*found, strict=True))
    joined = [parts[0] if len(parts) == 1 else np.concatenate(parts) for parts in columns[: 3 if weighted else 2]]
    return joined[0], joined[1], joined[2] if weighted else None


@dataclass
class Share:
    """A worker's share of a file: the lines that begin in its part of the bytes. `lines` counts those that it has read."""

    rank: int
    size: int
    lines: int = 0

    def pieces(self, stream: IO[bytes], size_bytes: int) -> Iterator[bytes]:
        """Yield pieces of whole lines."""
        begin, end = (size_bytes * at // self.size for at in (self.rank, self.rank + 1))
        for piece in _pieces(_share_of(stream, begin, end)):
            yield piece
            self.lines += piece.count(b"\n")

    def of(self, links: Links) -> Links:
        """Return a share of links that were read whole."""

        def cut(values: NDArray[Any]) -> NDArray[Any]:
            begin, end = (len(values) * at // self.size for at in (self.rank, self.rank + 1))
            # A view would keep the whole.
            found: NDArray[Any] = values[begin:end].copy()
            return found

        weights = None if links.weights is None else cut(links.weights)
        nodes = None if links.nodes is None else cut(links.nodes)
        return Links(cut(links.sources), cut(links.targets), weights, links.directed, nodes, links.attributes)


def _share_of(stream: IO[bytes], begin: int, end: int) -> IO[bytes]:
    """Return the lines that begin from one byte of a file to before another."""
    for at in (begin, end):
        stream.seek(max(at - 1, 0))
        skipped = len(stream.readline()) - 1 if at else 0
        if at == begin:
            first = at + skipped
        last = at + skipped
    stream.seek(first)
    return cast(IO[bytes], _Limited(stream, last - first))


class _Limited:
    """The next bytes of a stream, and no more."""

    def __init__(self, stream: IO[bytes], left: int) -> None:
        self._stream, self._left = stream, left

    def read(self, size: int) -> bytes:
        found = self._stream.read(min(size, self._left))
        self._left -= len(found)
        return found


def _first_fields(text: bytes, comments: str, delimiter: str | None) -> list[bytes]:
    """Return the fields of the first line with data."""
    marks = tuple(comments.encode())
    for line in text.splitlines():
        line = line.strip()
        if line and line[0] not in marks:
            return (
                [part for part in re.split(rb"[\s,;]+", line) if part]
                if delimiter is None
                else line.split(delimiter.encode())
            )
    return []


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def edge_list(
    path: Path, weights: bool | None, comments: str, delimiter: str | None, share: Share | None = None
) -> Links:
    """Read lines "source target [weight]". Ids that are not integers are strings.

    Of a share, lines in errors count from its beginning.
    """
    with opened(path) as stream:
        start = stream.read(1 << 20)
        fields = _first_fields(start, comments, delimiter)
        weighted = len(fields) > 2 and _is_number(fields[2]) if weights is None else weights
        # Where a line of a compressed file begins is known only after what is before it.
        if is_shared := share is not None and isinstance(stream, io.BufferedReader):
            pieces = share.pieces(stream, path.stat().st_size)
        else:
            pieces = _pieces(_chained(start, stream))
        if all(re.fullmatch(rb"[+-]?\d+", field) for field in fields[:2]):
            workers = share.size if share is not None and is_shared else None
            found = Links(*_parsed(path, pieces, weighted, workers=workers, comments=comments, delimiter=delimiter))
        else:
            found = Links(*_names(path, pieces, weighted, comments, delimiter))
        return found if is_shared or share is None else share.of(found)


def _names(
    path: Path, pieces: Iterator[bytes], weighted: bool, comments: str, delimiter: str | None
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float64] | None]:
    """Parse lines whose ids are strings."""
    sources, targets, weights = [], [], []
    number = 0
    for piece in pieces:
        for line in piece.decode(errors="replace").splitlines():
            number += 1
            line = line.strip()
            if not line or line[0] in comments:
                continue
            fields = line.replace(",", " ").replace(";", " ").split() if delimiter is None else line.split(delimiter)
            if len(fields) < 2 + weighted:
                raise ValueError(f"{path}: line {number}: {line!r} has {len(fields)} fields, not {2 + weighted}")
            sources.append(fields[0])
            targets.append(fields[1])
            if weighted:
                try:
                    weights.append(float(fields[2]))
                except ValueError:
                    raise ValueError(f"{path}: line {number}: the weight {fields[2]!r} is not a number") from None
    kind = None if sources else str
    return np.array(sources, kind), np.array(targets, kind), np.array(weights, float) if weighted else None


def _one_based(path: Path, links: Links, n: int) -> Links:
    """Check that ends are from 1 to n."""
    for side in (links.sources, links.targets):
        if len(side) and not (int(side.min()) >= 1 and int(side.max()) <= n):
            at = int(((side < 1) | (side > n)).argmax())
            raise ValueError(f"{path}: link {at + 1} names node {side[at]}, but nodes are numbered from 1 to {n}")
    links.nodes = np.arange(1, n + 1)
    return links


def dimacs(path: Path) -> Links:
    """Read a shortest-path (.gr), maximum-flow (.max) or coloring (.col) problem of DIMACS; nodes count from 1.

    Source: the DIMACS challenges; http://www.diag.uniroma1.it/challenge9/format.shtml.
    """
    head: dict[str, Any] = {}

    def pieces(stream: IO[bytes]) -> Iterator[bytes]:
        for piece in _pieces(stream):
            for line in re.findall(rb"^[pn][ \t].*$", piece, re.MULTILINE):
                fields = line.decode(errors="replace").split()
                try:
                    if fields[0] == "p":
                        head["kind"], head["n"] = fields[1], int(fields[2])
                    elif len(fields) > 2 and fields[2] in ("s", "t"):
                        head["source" if fields[2] == "s" else "sink"] = int(fields[1])
                except (IndexError, ValueError):
                    raise ValueError(f"{path}: the line {' '.join(fields)!r} is not one of DIMACS") from None
            if "n" not in head:
                raise ValueError(f"{path}: there is no line 'p KIND NODES LINKS' before the links")
            yield piece

    with opened(path) as stream:
        start = stream.read(1 << 16)
        colors = re.search(rb"^p[ \t]+(edge|col)", start, re.MULTILINE) is not None
        rest = _chained(start, stream)
        sources, targets, weights = _parsed(path, pieces(rest), not colors, comments="cpn", tag="e" if colors else "a")
    if "n" not in head:
        raise ValueError(f"{path}: there is no line 'p KIND NODES LINKS'")
    attributes: dict[str, Any] = {name: head[name] for name in ("source", "sink") if name in head}
    links = Links(sources, targets, weights, directed=not colors, attributes=attributes)
    return _one_based(path, links, head["n"])


class _Chained:
    """A stream whose first bytes were read already."""

    def __init__(self, start: bytes, stream: IO[bytes]) -> None:
        self._start, self._stream = start, stream

    def read(self, size: int) -> bytes:
        start, self._start = self._start, b""
        return start + self._stream.read(size - len(start)) if start else self._stream.read(size)


def _chained(start: bytes, stream: IO[bytes]) -> IO[bytes]:
    return cast(IO[bytes], _Chained(start, stream))


def coordinates(path: Path, ids: NDArray[Any]) -> NDArray[np.float64]:
    """Read the coordinates of DIMACS (.co) of the nodes with these ids, (n, 2); NaN where there are none."""
    with opened(path) as stream:
        nodes, x, y = _parsed(path, _pieces(stream), True, comments="cp", tag="v")
    assert y is not None
    place = {node: at for at, node in enumerate(ids.tolist())}
    found = np.full((len(ids), 2), np.nan)
    try:
        at = np.fromiter((place[node] for node in nodes.tolist()), np.int64, len(nodes))
    except KeyError as error:
        raise ValueError(f"{path}: the network has no node {error}") from None
    found[at, 0], found[at, 1] = x, y
    return found


def matrix_market(path: Path) -> Links:
    """Read a sparse square matrix of Matrix Market (.mtx); row and column numbers count from 1.

    Source: Boisvert, Pozo and Remington (1996), The Matrix Market Exchange Formats.
    """
    with opened(path) as stream:
        header = stream.readline().decode(errors="replace").lower().split()
        if len(header) != 5 or header[0] != "%%matrixmarket" or header[1:3] != ["matrix", "coordinate"]:
            raise ValueError(
                f"{path}: line 1 is not '%%MatrixMarket matrix coordinate ...'; only sparse matrices are networks"
            )
        field, symmetry = header[3:]
        if field not in ("real", "integer", "pattern", "double") or symmetry not in ("general", "symmetric"):
            raise ValueError(f"{path}: a matrix that is {field} and {symmetry} is not a network")
        number, line = 2, stream.readline()
        while line.startswith(b"%") or (line and not line.strip()):
            number, line = number + 1, stream.readline()
        try:
            rows, columns, count = (int(part) for part in line.split())
        except ValueError:
            raise ValueError(
                f"{path}: line {number}: {line.decode(errors='replace').strip()!r} is not 'ROWS COLUMNS ENTRIES'"
            ) from None
        if rows != columns:
            raise ValueError(
                f"{path}: the matrix has {rows} rows and {columns} columns, but that of a network is square"
            )
        found = _parsed(path, _pieces(stream), field != "pattern", number + 1, comments="%")
    if len(found[0]) != count:
        raise ValueError(f"{path}: there are {len(found[0])} entries, not {count}: the file is not complete")
    return _one_based(path, Links(*found, directed=symmetry == "general"), rows)


def metis(path: Path) -> Links:
    """Read a graph of METIS: after a header, the neighbors of each node on a line; nodes count from 1.

    Source: Karypis (2013), METIS manual, section 4.1.1.
    """
    with opened(path) as stream:
        lines = stream.read().decode(errors="replace").splitlines()
    kept = [(number, line) for number, line in enumerate(lines, 1) if not line.lstrip().startswith("%")]
    try:
        (_, header), *rows = kept
        fields = header.split()
        n, m = int(fields[0]), int(fields[1])
        kind = fields[2].zfill(3) if len(fields) > 2 else "000"
        constraints = int(fields[3]) if len(fields) > 3 else int(kind[1] == "1")
    except (ValueError, IndexError):
        raise ValueError(f"{path}: the first line is not 'NODES LINKS [FORMAT [CONSTRAINTS]]'") from None
    while len(rows) > n and not rows[-1][1].strip():
        rows.pop()
    if len(rows) != n:
        raise ValueError(f"{path}: there are {len(rows)} lines for {n} nodes")
    skipped, weighted = int(kind[0] == "1") + constraints, kind[2] == "1"
    numbers = []
    for number, line in rows:
        try:
            found = np.array(line.split(), np.float64)[skipped:]
        except ValueError:
            raise ValueError(f"{path}: line {number}: {line.strip()!r} has something that is not a number") from None
        if weighted and len(found) % 2:
            raise ValueError(f"{path}: line {number}: a neighbor has no weight")
        numbers.append(found)
    step = 1 + weighted
    sources = np.repeat(np.arange(1, n + 1), [len(found) // step for found in numbers])
    flat = np.concatenate(numbers) if numbers else np.empty(0)
    targets = flat[::step].astype(np.int64)
    if len(targets) != 2 * m:
        raise ValueError(f"{path}: there are {len(targets)} neighbors, not two for each of {m} links")
    # Each link is on the lines of both of its nodes.
    once = sources <= targets
    weights = flat[1::2][once] if weighted else None
    return _one_based(path, Links(sources[once], targets[once], weights, directed=False), n)

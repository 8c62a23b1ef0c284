"""Networks as text: edge lists as of SNAP, DIMACS, Matrix Market and METIS, of which each worker reads a `Share`.

A worker has the lines that begin in its part of the bytes; what comes before them, such as a header, all read. A compressed file
has no such parts, so the first worker decompresses it, and sends the others their lines. What a share cannot know alone, such as
the number of lines before it, `Links.complete` adds once all are read.

Numbers are parsed by a kernel, a piece of the file at a time; what is bad is told by file and line.
"""

from __future__ import annotations

import io
import itertools
import re
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from tidemill._needs import needed
from tidemill._tidemill import network_parse
from tidemill.ml._threads import pool
from tidemill.networks import _memory

__all__ = [
    "Links",
    "Share",
    "coordinates",
    "coordinates_of",
    "dimacs",
    "edge_list",
    "matrix_market",
    "metis",
    "opened",
    "together",
]

T = TypeVar("T")

#: How much of a file is parsed at a time.
PIECE_BYTES = 64 << 20
#: How much of what is decompressed is sent at a time: less, since a worker may have some on their way.
_SENT_BYTES = 8 << 20
#: Of messages with lines.
_TAG = 3701


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
    #: What others must know of this share.
    summary: Any = None
    #: Completes this share, given the summaries of all workers and the rank of this one. The same errors on all workers.
    complete: Callable[[Links, list[Any], int], None] | None = None


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
    with path.open("rb") as raw, _decompressed(path, raw) as stream:
        yield stream


def _is_compressed(path: Path) -> bool:
    return path.suffix.lower() in (".gz", ".bz2", ".xz", ".zst")


@contextmanager
def _decompressed(path: Path, raw: IO[bytes]) -> Iterator[IO[bytes]]:
    """Decompress an open file; see `opened`."""
    if not _is_compressed(path):
        yield raw
        return
    suffix = path.suffix.lower()
    module = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma", ".zst": "zstandard"}[suffix]
    stream = needed(module, f"reading {path.name}").open(raw, "rb")
    if suffix == ".zst":
        # Its streams have no lines.
        stream = io.BufferedReader(stream)
    with stream:
        try:
            yield cast(IO[bytes], stream)
        except (EOFError, zlib.error) as error:
            raise ValueError(f"{path}: the compressed data is damaged: {error}") from error


def _pieces(stream: IO[bytes], size: int) -> Iterator[bytes]:
    """Yield pieces of whole lines, of about this many bytes."""
    rest = b""
    while block := stream.read(size):
        block = rest + block if rest else block
        end = block.rfind(b"\n") + 1
        rest = block[end:]
        if end:
            yield block[:end] if rest else block
    if rest:
        yield rest


@dataclass
class Share:
    """A worker's share of a text, by default all of it: the lines that begin in its part of the bytes.

    `lines` and `links` count what it has read. Workers that `comm` joins read together, also where one cannot.
    """

    rank: int = 0
    size: int = 1
    comm: Any = None
    lines: int = 0
    links: int = 0

    @property
    def workers(self) -> int | None:
        """The number of workers that share a network; None for a whole one."""
        return None if self.comm is None else self.size

    def agreed(self, work: Callable[[], T]) -> T:
        """Do what comes before lines. Collective: the first worker's error is raised on all."""
        found, trouble = None, None
        try:
            found = work()
        except Exception as error:  # It is raised below.
            trouble = error
        every = [trouble] if self.size == 1 else self.comm.allgather(trouble)
        first = next((error for error in every if error is not None), None)
        if first is not None:
            raise first
        return cast(T, found)

    def numbers(self, n: int) -> NDArray[np.int64]:
        """Return a share of the numbers from 1 to n."""
        return np.arange(1 + n * self.rank // self.size, 1 + n * (self.rank + 1) // self.size)

    @contextmanager
    def read(self, path: Path, header: Callable[[IO[bytes]], T]) -> Iterator[tuple[T, Iterator[bytes]]]:
        """Read the header of a file, and then this share of its lines, in pieces. Collective."""
        with ExitStack() as stack:

            def begun() -> tuple[IO[bytes], IO[bytes], T]:
                raw = stack.enter_context(path.open("rb"))
                stream = stack.enter_context(_decompressed(path, raw))
                return raw, stream, header(stream)

            raw, stream, found = self.agreed(begun)
            if self.size == 1:
                yield found, self._counted(_pieces(stream, PIECE_BYTES))
            elif not _is_compressed(path):
                first, end = stream.tell(), path.stat().st_size
                bounds = (first + max(0, end - first) * at // self.size for at in (self.rank, self.rank + 1))
                yield found, self._counted(_pieces(_share_of(stream, *bounds), PIECE_BYTES))
            elif self.rank == 0:
                try:
                    yield found, self._counted(self._dealt(raw, stream, path.stat().st_size))
                finally:
                    for rank in range(1, self.size):
                        self.comm.send(None, rank, _TAG)
            else:
                stack.close()
                coming = iter(lambda: self.comm.recv(source=0, tag=_TAG), None)
                try:
                    yield found, self._counted(coming)
                finally:
                    # After an error the first worker still sends.
                    for _ in coming:
                        pass

    def _counted(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            yield piece
            self.lines += piece.count(b"\n")

    def _dealt(self, raw: IO[bytes], stream: IO[bytes], size_bytes: int) -> Iterator[bytes]:
        """Decompress: yield the pieces of this worker, the first, and send the others theirs.

        Whose a piece is follows from where it begins in the compressed file, so shares are of about the same length, and in order.
        """
        pieces = _pieces(stream, _SENT_BYTES)
        while True:
            owner = min(raw.tell() * self.size // max(1, size_bytes), self.size - 1)
            piece = next(pieces, None)
            if piece is None:
                return
            if owner == 0:
                yield piece
            else:
                self.comm.send(piece, owner, _TAG)


def together(share: Share, read: Callable[[], T]) -> T:
    """Read a share on every worker, or raise the first one's error on all, by its line in the file. Collective."""
    share.lines = share.links = 0
    found, trouble = None, None
    try:
        found = read()
    except Exception as error:  # It is raised on all workers.
        trouble = error
    mine = share.lines, trouble
    told = [mine] if share.size == 1 else share.comm.allgather(mine)
    failed = next((rank for rank, (_, error) in enumerate(told) if error is not None), None)
    if failed is None:
        return cast(T, found)
    # Shares before it were read to their ends, so that they know how many lines they have.
    before, first = sum(lines for lines, _ in told[:failed]), told[failed][1]
    assert first is not None
    if isinstance(first, ValueError) and before:
        text = re.sub(r"line (\d+)", lambda line: f"line {int(line[1]) + before}", str(first), count=1)
        first = type(first)(text)
    raise first


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


def _parsed(
    path: Path,
    pieces: Iterator[bytes],
    share: Share,
    weighted: bool,
    first_line: int = 1,
    *,
    nodes: int | None = None,
    **options: Any,
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float64] | None]:
    """Parse lines with two numbers, from 1 to `nodes` if that is given, and a third if `weighted`; see `network_parse`."""
    found = []
    line = first_line
    for piece in pieces:
        try:
            sources, targets, weights, lines = network_parse(pool(), piece, weighted, first_line=line, **options)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        if nodes is not None:
            _check_nodes(path, piece, (sources, targets), nodes, line, options["comments"])
        found.append((sources, targets, weights))
        line, share.links = line + lines, share.links + len(sources)
        _memory.check(str(path), share.links * share.size, weighted=weighted, workers=share.workers)
    if not found:
        none = np.empty(0, np.int64)
        return none, none, np.empty(0) if weighted else None
    columns = list(zip(*found, strict=True))
    joined = [parts[0] if len(parts) == 1 else np.concatenate(parts) for parts in columns[: 3 if weighted else 2]]
    return joined[0], joined[1], joined[2] if weighted else None


def _check_nodes(
    path: Path, piece: bytes, ends: tuple[NDArray[Any], NDArray[Any]], n: int, first_line: int, comments: str
) -> None:
    """Check that ends are from 1 to n; the line of one that is not is searched only then."""
    if all(not len(side) or (int(side.min()) >= 1 and int(side.max()) <= n) for side in ends):
        return
    wrong = [(side < 1) | (side > n) for side in ends]
    at = int((wrong[0] | wrong[1]).argmax())
    node = int(ends[0][at] if wrong[0][at] else ends[1][at])
    lines = (number for number, line in enumerate(piece.split(b"\n"), first_line) if _has_data(line, comments))
    number = next(itertools.islice(lines, at, None))
    raise ValueError(f"{path}: line {number}: it names node {node}, but nodes are numbered from 1 to {n}")


def _has_data(line: bytes, comments: str) -> bool:
    line = line.strip()
    return bool(line) and line[0] not in comments.encode()


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


def edge_list(path: Path, weights: bool | None, comments: str, delimiter: str | None, share: Share) -> Links:
    """Read lines "source target [weight]". Ids that are not integers are strings."""

    def first(_: IO[bytes]) -> list[bytes]:
        with opened(path) as stream:
            return _first_fields(stream.read(1 << 20), comments, delimiter)

    with share.read(path, first) as (fields, pieces):
        weighted = len(fields) > 2 and _is_number(fields[2]) if weights is None else weights
        if all(re.fullmatch(rb"[+-]?\d+", field) for field in fields[:2]):
            return Links(*_parsed(path, pieces, share, weighted, comments=comments, delimiter=delimiter))
        return Links(*_names(path, pieces, weighted, comments, delimiter))


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


def dimacs(path: Path, share: Share) -> Links:
    """Read a shortest-path (.gr), maximum-flow (.max) or coloring (.col) problem of DIMACS; nodes count from 1.

    Source: the DIMACS challenges; http://www.diag.uniroma1.it/challenge9/format.shtml.
    """
    told: dict[str, Any] = {}

    def header(stream: IO[bytes]) -> tuple[bool, int, int]:
        """Return whether it is a coloring problem, the number of nodes, and that of the line after the header."""
        for number in itertools.count(1):
            line = stream.readline()
            if not line or not (line.strip() == b"" or line[:1] in b"cp"):
                raise ValueError(f"{path}: there is no line 'p KIND NODES LINKS' before the links")
            if line[:1] == b"p":
                fields = _fields(line)
                try:
                    return fields[1] in ("edge", "col"), int(fields[2]), number + 1
                except (IndexError, ValueError):
                    raise ValueError(
                        f"{path}: line {number}: {' '.join(fields)!r} is not 'p KIND NODES LINKS'"
                    ) from None
        raise AssertionError("the lines of a file end")

    def with_ends(pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the pieces, whose lines "n NODE s" and "n NODE t" name the ends of a flow."""
        for piece in pieces:
            for line in re.findall(rb"^n[ \t].*$", piece, re.MULTILINE):
                fields = _fields(line)
                if len(fields) > 2 and fields[2] in ("s", "t"):
                    try:
                        told["source" if fields[2] == "s" else "sink"] = int(fields[1])
                    except ValueError:
                        raise ValueError(
                            f"{path}: the line {' '.join(fields)!r} is not 'n NODE s' or 'n NODE t'"
                        ) from None
            yield piece

    def complete(links: Links, every: list[dict[str, Any]], rank: int) -> None:
        links.attributes = {name: value for one in every for name, value in one.items()}

    with share.read(path, header) as ((colors, n, line), pieces):
        tag = "e" if colors else "a"
        found = _parsed(path, with_ends(pieces), share, not colors, line, nodes=n, comments="cpn", tag=tag)
    return Links(*found, directed=not colors, nodes=share.numbers(n), summary=told, complete=complete)


def _fields(line: bytes) -> list[str]:
    return line.decode(errors="replace").split()


def coordinates(path: Path, ids: NDArray[Any]) -> NDArray[np.float64]:
    """Read the coordinates of DIMACS (.co) of the nodes with these ids, (n, 2); NaN where there are none."""
    nodes, x, y = coordinates_of(path, Share())
    place = {node: at for at, node in enumerate(ids.tolist())}
    found = np.full((len(ids), 2), np.nan)
    try:
        at = np.fromiter((place[node] for node in nodes.tolist()), np.int64, len(nodes))
    except KeyError as error:
        raise ValueError(f"{path}: the network has no node {error}") from None
    found[at, 0], found[at, 1] = x, y
    return found


def coordinates_of(path: Path, share: Share) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float64]]:
    """Read a share of the coordinates of DIMACS (.co): nodes, x and y."""
    with share.read(path, lambda stream: None) as (_, pieces):
        nodes, x, y = _parsed(path, pieces, share, True, comments="cp", tag="v")
    assert y is not None
    return nodes, x, y


def matrix_market(path: Path, share: Share) -> Links:
    """Read a sparse square matrix of Matrix Market (.mtx); row and column numbers count from 1.

    A skew-symmetric matrix has a second link, with the negative weight, for each entry.

    Source: Boisvert, Pozo and Remington (1996), The Matrix Market Exchange Formats.
    """

    def header(stream: IO[bytes]) -> tuple[str, str, int, int, int]:
        """Return the field, the symmetry, the numbers of rows and entries, and that of the line after the header."""
        fields = _fields(stream.readline().lower())
        if len(fields) != 5 or fields[0] != "%%matrixmarket" or fields[1:3] != ["matrix", "coordinate"]:
            raise ValueError(
                f"{path}: line 1 is not '%%MatrixMarket matrix coordinate ...'; only sparse matrices are networks"
            )
        field, symmetry = fields[3:]
        if field not in ("real", "integer", "pattern", "double") or symmetry not in (
            "general",
            "symmetric",
            "skew-symmetric",
        ):
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
        return field, symmetry, rows, count, number + 1

    with share.read(path, header) as ((field, symmetry, rows, count, line), pieces):
        sources, targets, weights = _parsed(path, pieces, share, field != "pattern", line, nodes=rows, comments="%")

    def complete(links: Links, every: list[int], rank: int) -> None:
        if sum(every) != count:
            raise ValueError(f"{path}: there are {sum(every)} entries, not {count}: the file is not complete")

    entries = len(sources)
    if symmetry == "skew-symmetric":
        sources, targets = np.concatenate([sources, targets]), np.concatenate([targets, sources])
        weights = None if weights is None else np.concatenate([weights, -weights])
    return Links(
        sources,
        targets,
        weights,
        directed=symmetry != "symmetric",
        nodes=share.numbers(rows),
        summary=entries,
        complete=complete,
    )


def metis(path: Path, share: Share) -> Links:
    """Read a graph of METIS: after a header, the neighbors of each node on a line; nodes count from 1.

    Source: Karypis (2013), METIS manual, section 4.1.1.
    """

    def header(stream: IO[bytes]) -> tuple[int, int, bool, int, int]:
        """Return the numbers of nodes and links, whether these have weights, how many numbers precede them, and the next line's."""
        number, line = 1, stream.readline()
        while line.lstrip().startswith(b"%"):
            number, line = number + 1, stream.readline()
        fields = _fields(line)
        try:
            n, m = int(fields[0]), int(fields[1])
            kind = fields[2].zfill(3) if len(fields) > 2 else "000"
            constraints = int(fields[3]) if len(fields) > 3 else int(kind[1] == "1")
        except (ValueError, IndexError):
            raise ValueError(f"{path}: the first line is not 'NODES LINKS [FORMAT [CONSTRAINTS]]'") from None
        return n, m, kind[2] == "1", int(kind[0] == "1") + constraints, number + 1

    found: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64] | None]] = []
    rows = used = 0
    with share.read(path, header) as ((n, m, weighted, skipped, line), pieces):
        for piece in pieces:
            numbers, of_row, values = _rows_of_numbers(path, piece, line)
            # The numbers of a line before its neighbors: its size and weights.
            begins = np.cumsum(of_row) - of_row
            place = np.arange(len(values)) - np.repeat(begins, of_row)
            if weighted and (odd := (np.maximum(of_row - skipped, 0) % 2).astype(bool)).any():
                raise ValueError(f"{path}: line {numbers[odd.argmax()]}: a neighbor has no weight")
            is_target = (place >= skipped) & ((place - skipped) % (1 + weighted) == 0)
            at = np.flatnonzero(is_target)
            row = np.repeat(np.arange(len(of_row)), of_row)[at]
            targets = values[at]
            if (wrong := ~((targets >= 1) & (targets <= n) & (targets == np.floor(targets)))).any():
                first = int(wrong.argmax())
                raise ValueError(
                    f"{path}: line {numbers[row[first]]}: it names node {targets[first]:.15g}, but nodes are numbered from 1 to {n}"
                )
            found.append((row + rows, targets.astype(np.int64), values[at + 1] if weighted else None))
            if len(filled := np.flatnonzero(of_row)):
                used = rows + int(filled[-1]) + 1
            rows += len(of_row)
            line += piece.count(b"\n")
            share.links += len(targets)
            _memory.check(str(path), share.links * share.size, weighted=weighted, workers=share.workers)
    none = np.empty(0, np.int64)
    sources, targets = (np.concatenate([none, *column]) for column in list(zip(*found, strict=True))[:2] or [(), ()])
    weights = np.concatenate([np.empty(0), *(part[2] for part in found if part[2] is not None)]) if weighted else None

    def complete(links: Links, every: list[tuple[int, int, int]], rank: int) -> None:
        """Number the rows of this share from the first of all on, and keep each link once: it is on the lines of both nodes."""
        befores = np.concatenate([[0], np.cumsum([one[0] for one in every])])
        # Lines without numbers may follow.
        last = max(int(before) + one[1] if one[1] else 0 for before, one in zip(befores, every, strict=False))
        if befores[-1] < n or last > n:
            raise ValueError(f"{path}: there are {max(last, int(min(befores[-1], n)))} lines for {n} nodes")
        if (neighbors := sum(one[2] for one in every)) != 2 * m:
            raise ValueError(f"{path}: there are {neighbors} neighbors, not two for each of {m} links")
        links.sources += befores[rank] + 1
        once = links.sources <= links.targets
        links.sources, links.targets = links.sources[once], links.targets[once]
        links.weights = None if links.weights is None else links.weights[once]

    summary = rows, used, len(sources)
    return Links(sources, targets, weights, False, share.numbers(n), summary=summary, complete=complete)


def _rows_of_numbers(
    path: Path, piece: bytes, first_line: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return the numbers of the lines that are not comments, how many numbers each has, and all of these."""
    lines = piece.split(b"\n")
    if not lines[-1]:
        lines.pop()
    numbers = np.arange(first_line, first_line + len(lines))
    if b"%" in piece:
        kept = [not line.lstrip().startswith(b"%") for line in lines]
        numbers, lines = numbers[kept], list(itertools.compress(lines, kept))
    counts = np.fromiter((len(line.split()) for line in lines), np.int64, len(lines))
    with warnings.catch_warnings():
        # It warns of what is no number, and stops there.
        warnings.simplefilter("ignore", DeprecationWarning)
        text = b" ".join(lines)
        try:
            values = np.fromstring(text, np.float64, sep=" ") if text.strip() else np.empty(0)
        except ValueError:
            # Later versions of NumPy refuse it.
            values = np.empty(0)
    if len(values) != counts.sum():
        for number, line in zip(numbers.tolist(), lines, strict=True):
            for part in line.split():
                if not _is_number(part):
                    line_text = line.decode(errors="replace").strip()
                    raise ValueError(f"{path}: line {number}: {line_text!r} has something that is not a number")
        values = np.array([float(part) for part in text.split()])
    return numbers, counts, values

"""`read`: a network from a file, a DataSet, arrays, or an object of another library."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tidemill._job import init
from tidemill._needs import needed
from tidemill._tables.engine import memory_budget
from tidemill.dataset import DataSet, Table, from_arrow, read_csv, read_parquet
from tidemill.ml._job import active
from tidemill.networks import _memory, _text
from tidemill.networks._distributed import AnyNetwork, DistributedNetwork, distributed
from tidemill.networks._division import METHODS, divided
from tidemill.networks._memory import Estimate
from tidemill.networks._network import Duplicates, Network, built, check_options, numbered, objects

__all__ = ["estimate", "read"]

T = TypeVar("T")

#: Formats by the end of a file's name, without that of its compression.
_SUFFIXES = {
    ".gr": "dimacs",
    ".max": "dimacs",
    ".col": "dimacs",
    ".dimacs": "dimacs",
    ".mtx": "matrix_market",
    ".graph": "metis",
    ".metis": "metis",
    ".graphml": "graphml",
    ".parquet": "parquet",
    ".pq": "parquet",
}


@overload
def read(
    source: Any,
    *,
    format: str | None = None,
    directed: bool | None = None,
    weights: bool | str | ArrayLike | None = None,
    columns: tuple[str, str] | None = None,
    nodes: int | ArrayLike | None = None,
    coordinates: str | os.PathLike[str] | ArrayLike | None = None,
    comments: str = "#%",
    delimiter: str | None = None,
    duplicates: Duplicates = "first",
    self_loops: Literal["keep", "drop", "raise"] = "keep",
    together: Literal[False] = False,
    partition: None = None,
) -> Network: ...
@overload
def read(
    source: Any,
    *,
    format: str | None = None,
    directed: bool | None = None,
    weights: bool | str | ArrayLike | None = None,
    columns: tuple[str, str] | None = None,
    nodes: int | ArrayLike | None = None,
    coordinates: Any = None,
    comments: str = "#%",
    delimiter: str | None = None,
    duplicates: Duplicates = "first",
    self_loops: Literal["keep", "drop", "raise"] = "keep",
    together: Literal[True],
    partition: Any = None,
) -> DistributedNetwork: ...
def read(
    source: Any,
    *,
    format: str | None = None,
    directed: bool | None = None,
    weights: bool | str | ArrayLike | None = None,
    columns: tuple[str, str] | None = None,
    nodes: int | ArrayLike | None = None,
    coordinates: Any = None,
    comments: str = "#%",
    delimiter: str | None = None,
    duplicates: Duplicates = "first",
    self_loops: Literal["keep", "drop", "raise"] = "keep",
    together: bool = False,
    partition: Any = None,
) -> AnyNetwork:
    """Read a network.

    Local: every worker that calls it gets the whole network; a DataSet needs all workers to call it together. With
    ``together=True`` each worker gets a share. A network takes 4 bytes per link and 8 per node, with weights 8 more per
    link, and 12 to 20 more per link while it is read; an undirected network has two links for each link of its source.

    Parameters
    ----------
    source : str, path-like, DataSet, Table, arrays, or an object of another library
        - A file, also compressed (``.gz``, ``.bz2``, ``.xz``, ``.zst``): an edge list as of SNAP (a link a line: its
          source, its target, perhaps a weight), DIMACS (``.gr``, ``.max``, ``.col``), Matrix Market (``.mtx``), METIS
          (``.graph``, ``.metis``), GraphML (``.graphml``; by networkx), Parquet, or CSV with a header.
        - A `DataSet`, a `Table` or a table of another library: its first two columns are the ends of links, a third is
          the weight.
        - A pair ``(sources, targets)`` of arrays (m,), with weights as a third; or an array of integers (m, 2).
        - A sparse matrix or array of SciPy (n, n), with rows as sources.
        - A graph of networkx or igraph.
    format : {"edges", "dimacs", "matrix_market", "metis", "graphml", "parquet", "csv"}, optional
        Format of a file; by default it follows from the name, and is an edge list if that says nothing.
    directed : bool, optional
        By default as the source says; True for edge lists, tables and arrays, which do not say.
    weights : bool, str or array-like (m,), optional
        Whether links have weights, the column or attribute that has them, or the weights themselves. By default they
        have weights if the source has: a third column of numbers, values of a matrix other than 1, or the attribute
        ``weight``.
    columns : pair of str, optional
        The columns of a table with the ends of links; by default the first two.
    nodes : int or array-like, optional
        Ids of nodes, to include nodes without links; a number ``n`` means the ids 0 to ``n - 1``.
    coordinates : str, path-like or array-like (n, 2), optional
        A DIMACS file (``.co``), or coordinates in the order of the nodes. With ``partition="coordinates"``, a file, or ids, x
        and y as three arrays or a table, of which each worker passes its own; they are not kept.
    comments : str, default="#%"
        Characters; a line of an edge list that begins with one of them is skipped.
    delimiter : str, optional
        One character between the fields of an edge list; by default any run of spaces, tabs, commas and semicolons.
    duplicates : {"first", "sum", "min", "max", "keep"}, default="first"
        Of several links between two nodes (in the same direction, if directed), keep the first, one with the sum, the
        smallest or the largest of their weights, or all. The sum of links without weights is their number.
    self_loops : {"keep", "drop", "raise"}, default="keep"
        How to treat links from a node to itself.
    together : bool, default=False
        Collective: all workers of the job, or of `tidemill.ml.using`, make a `DistributedNetwork`, of which each has a
        share. Of a file, a DataSet or a table, each worker reads a share. Of anything else, including `nodes` that are an array,
        each worker passes its own. Edge lists, DIMACS, Matrix Market and METIS are shared by lines; of a compressed file,
        rank 0 decompresses and sends the others their lines, and GraphML it reads alone. CSV and Parquet files are shared
        as by DataSets. Ids are integers or text.
    partition : {"blocks", "hash", "coordinates", "greedy"}, pair of arrays or table, optional
        With ``together=True``, which worker owns which nodes. By default ``"blocks"``: runs of ids with equally many links.
        ``"hash"`` is for comparison; ``"coordinates"``, rectangles with equally many nodes, is for roads and meshes;
        ``"greedy"`` moves nodes to where most of their neighbors are, in at most 160 sweeps and exchanges. A pair
        ``(ids, workers)``, a DataSet or another table with these two columns names the worker of each node; each worker
        passes its own rows. Results do not depend on it. ``network.partition`` has the cut, the balance and the time.

    Returns
    -------
    Network, or with ``together=True`` DistributedNetwork

    Raises
    ------
    NetworkTooLargeError
        If the network would exceed this worker's budget, before it does; see `estimate`.
    ValueError
        If a line is not a link, with file and line; if a weight is NaN, with its link; if an option does not fit. With
        ``together=True``, all errors are on all workers.
    TypeError
        If `source` is none of the above.
    FileNotFoundError
    ModuleNotFoundError
        If a package that a format needs is missing.

    Examples
    --------
    >>> import tidemill as tm
    >>> net = tm.networks.read((["ann", "bob", "bob"], ["bob", "cid", "dee"]), directed=False)
    >>> net.n, net.m, net.ids.tolist()
    (4, 3, ['ann', 'bob', 'cid', 'dee'])
    """
    if together:
        if (coordinates is not None) != (isinstance(partition, str) and partition == "coordinates"):
            raise ValueError(
                "a distributed network has no coordinates, but partition='coordinates' needs them to deal its nodes: pass both or none"
            )
        if isinstance(partition, str) and partition not in METHODS:
            raise ValueError(
                f"partition is {', '.join(map(repr, METHODS))}, or ids and the worker of each, not {partition!r}"
            )
        comm = active()
        share = _text.Share(comm.rank, comm.size, comm)

        def read_share() -> _text.Links:
            return _links(source, format, weights, columns, comments, delimiter, share)

        def with_options(links: _text.Links) -> _text.Links:
            links = _with(links, weights, None)
            if isinstance(nodes, int):
                links.nodes = np.arange(nodes * share.rank // share.size, nodes * (share.rank + 1) // share.size)
            elif nodes is not None:
                links.nodes = np.asarray(nodes)
            return links

        network = _shared(comm, share, read_share, with_options, source, directed, duplicates, self_loops)
        return _divided(network, partition, coordinates, share)
    if partition is not None:
        raise ValueError("partition= deals the nodes of a network that workers share: pass together=True, too")
    links = _links(source, format, weights, columns, comments, delimiter, None)
    if links.complete is not None:
        links.complete(links, [links.summary], 0)
    links = _with(links, weights, nodes)
    is_directed = links.directed if directed is None else directed
    _memory.check(
        _name(source),
        len(links.sources),
        0 if links.nodes is None else len(links.nodes),
        links.weights is not None,
        not is_directed,
    )
    ids, n, sources, targets = numbered(links.sources, links.targets, links.nodes)
    net = built(
        sources,
        targets,
        links.weights,
        n,
        ids,
        directed=is_directed,
        duplicates=duplicates,
        self_loops=self_loops,
        attributes=links.attributes,
    )
    if isinstance(coordinates, str | os.PathLike):
        net.coordinates = _text.coordinates(Path(coordinates), net.ids)
    elif coordinates is not None:
        net.coordinates = np.asarray(coordinates, np.float64)
        if net.coordinates.shape != (n, 2):
            raise ValueError(f"coordinates are of shape ({n}, 2), one row for each node, not {net.coordinates.shape}")
    return net


def _name(source: Any) -> str:
    return str(source) if isinstance(source, str | os.PathLike) else "a network"


def _with(links: _text.Links, weights: Any, nodes: int | ArrayLike | None) -> _text.Links:
    """Put in weights and nodes that were given."""
    if nodes is not None:
        links.nodes = np.arange(nodes) if isinstance(nodes, int) else np.asarray(nodes)
    if not isinstance(weights, bool | str | None):
        links.weights = np.asarray(weights, np.float64)
    if weights is False:
        links.weights = None
    if links.weights is not None and len(links.weights) != len(links.sources):
        raise ValueError(f"there are {len(links.weights)} weights for {len(links.sources)} links")
    return links


def _shared(
    comm: Any,
    share: _text.Share,
    read_share: Callable[[], _text.Links],
    with_options: Callable[[_text.Links], _text.Links],
    source: Any,
    directed: bool | None,
    duplicates: Duplicates,
    self_loops: str,
) -> DistributedNetwork:
    """Return the network of which each worker reads its share. Collective."""

    def attempt(work: Callable[[], T]) -> T:
        return _text.together(share, work)

    if isinstance(source, str | os.PathLike):
        # Before tables, whose reading is collective.
        attempt(lambda: Path(source).open("rb").close())
    links = attempt(read_share)
    complete = links.complete
    # Of a file, all workers have it or none.
    if complete is not None:
        every = [links.summary] if comm.size == 1 else comm.allgather(links.summary)
        attempt(lambda: complete(links, every, comm.rank))
    attempt(lambda: with_options(links))
    attempt(lambda: _alone(comm, links, duplicates, self_loops))
    is_directed = links.directed if directed is None else directed
    count = len(links.sources) if comm.size == 1 else sum(comm.allgather(len(links.sources)))
    weighted = links.weights is not None
    attempt(lambda: _memory.check(_name(source), count, 0, weighted, not is_directed, comm.size))
    _same_ids(comm, links)
    return distributed(comm, links, directed=is_directed, duplicates=duplicates)


def _divided(network: DistributedNetwork, partition: Any, coordinates: Any, share: _text.Share) -> DistributedNetwork:
    """Deal the nodes of a network by a partition. Collective."""
    if partition is None:
        return network
    if not isinstance(partition, str):
        return divided(network, "given", _columns(partition, 2, "partition", share))
    if partition != "coordinates":
        return divided(network, partition, None)
    if isinstance(coordinates, str | os.PathLike):
        path = Path(coordinates)
        where: tuple[Any, ...] = _text.together(share, lambda: _text.coordinates_of(path, share))
    else:
        where = _columns(coordinates, 3, "coordinates", share)
    return divided(network, partition, where)


def _columns(given: Any, count: int, name: str, share: _text.Share) -> tuple[NDArray[Any], ...]:
    """Return ids and numbers, of a table the rows of this worker. Collective."""
    wanted = "ids and workers" if count == 2 else "ids, x and y"
    is_table = isinstance(given, DataSet | Table) or hasattr(given, "__arrow_c_stream__")
    if is_table:
        table = given if isinstance(given, DataSet) else from_arrow(given)
        names = list(table.schema)[:count]
        found = table.select(*names).collect_local().to_numpy()
        given = tuple(found[column] for column in names)

    def checked() -> tuple[NDArray[Any], ...]:
        if not isinstance(given, tuple | list) or len(given) != count:
            raise ValueError(f"{name} needs {wanted}, as {count} arrays or the columns of a table")
        ids = _array(given[0]) if not isinstance(given[0], np.ndarray) else given[0]
        ids = ids.astype(str) if ids.dtype.kind == "O" else ids
        ids = ids if len(ids) else ids.astype(np.int64)
        values = [np.asarray(column) for column in given[1:]]
        if any(column.shape != (len(ids),) or (len(ids) and column.dtype.kind not in "iuf") for column in values):
            raise ValueError(f"{name} needs {wanted}: numbers, one for each id")
        if count == 2 and any(column.dtype.kind == "f" and len(column) for column in values):
            raise ValueError(f"{name}: workers are integers")
        return ids, *(column.astype(np.int64 if count == 2 else np.float64) for column in values)

    return share.agreed(checked)


def _alone(comm: Any, links: _text.Links, duplicates: Duplicates, self_loops: str) -> None:
    """Check a worker's links, drop loops, and make ids integers of 64 bits or text."""
    check_options(duplicates, self_loops)
    where = f"on rank {comm.rank}, " if comm.size > 1 else ""
    sides = [np.asarray(side) for side in (links.sources, links.targets)]
    if any(side.ndim != 1 for side in sides) or len(sides[0]) != len(sides[1]):
        raise ValueError(
            f"{where}sources and targets are arrays of one dimension and length, not of shapes {sides[0].shape} and {sides[1].shape}"
        )

    def named(side: int, at: int) -> str:
        return repr(sides[side][at : at + 1].tolist()[0])

    if links.weights is not None and (bad := np.isnan(links.weights)).any():
        at = int(bad.argmax())
        raise ValueError(f"{where}link {at} from {named(0, at)} to {named(1, at)} has weight NaN")
    if self_loops != "keep" and (loops := sides[0] == sides[1]).any():
        if self_loops == "raise":
            at = int(loops.argmax())
            raise ValueError(f"{where}link {at} leads from {named(0, at)} to itself: read with self_loops='drop'")
        sides = [side[~loops] for side in sides]
        links.weights = None if links.weights is None else links.weights[~loops]
    nodes = None if links.nodes is None else np.asarray(links.nodes)
    found = []
    for side in [*sides, *([] if nodes is None else [nodes])]:
        if not side.size:
            side = side.astype(np.int64)
        elif side.dtype.kind == "O" and all(isinstance(value, str) for value in side.tolist()):
            side = side.astype(str)
        if side.dtype.kind not in "iuU":
            raise ValueError(
                f"{where}ids are of type {side.dtype}, but those of a distributed network are integers or text: cast them"
            )
        found.append(side)
    links.sources, links.targets = found[:2]
    links.nodes = None if nodes is None else found[2]


def _same_ids(comm: Any, links: _text.Links) -> None:
    """Give ids the same dtype on all workers. Collective.

    Raises
    ------
    ValueError
        On every worker, if there is none.
    """
    values = [value for value in (links.sources, links.targets, links.nodes) if value is not None and value.size]
    whole = [value for value in values if value.dtype.kind != "U"]
    text = [value.dtype.itemsize for value in values if value.dtype.kind == "U"]
    mine = (
        min((int(value.min()) for value in whole), default=0),
        max((int(value.max()) for value in whole), default=0),
        max(text, default=0),
        len(whole),
    )
    every = [mine] if comm.size == 1 else comm.allgather(mine)
    low, high, size = min(one[0] for one in every), max(one[1] for one in every), max(one[2] for one in every)
    if size and any(one[3] for one in every):
        raise ValueError("some ids are integers and others text: make all of them text")
    if low < 0 and high >= 2**63:
        raise ValueError("some ids are negative and others above 2⁶³: make them strings")
    kind = np.dtype(f"U{size // 4}" if size else np.uint64 if high >= 2**63 else np.int64)
    links.sources = np.ascontiguousarray(links.sources, dtype=kind)
    links.targets = np.ascontiguousarray(links.targets, dtype=kind)
    links.nodes = None if links.nodes is None else np.ascontiguousarray(links.nodes, dtype=kind)


def estimate(
    path: str | os.PathLike[str],
    *,
    weights: bool | None = None,
    directed: bool = True,
    workers: int | None = None,
) -> Estimate:
    """Estimate the memory for reading an edge list, DIMACS or Matrix Market file, from its size and its first megabyte.

    For a compressed file this is a lower bound, as if it were not compressed; `read` counts again while it reads.

    Parameters
    ----------
    path : str or path-like
    weights : bool, optional
        Whether links have weights, as for `read`; by default, if their lines have a third field.
    directed : bool, default=True
        Whether links lead one way; otherwise they take twice as much.
    workers : int, optional
        How many workers read it with ``together=True``. By default, one worker gets the whole network.

    Returns
    -------
    Estimate

    Raises
    ------
    FileNotFoundError
    """
    path = Path(path)
    with _text.opened(path) as stream:
        lines = stream.read(1 << 20).splitlines()
    comments = b"cpn" if path.suffix in (".gr", ".max", ".col") else b"#%"
    lines = [line for line in lines if line.strip() and line[:1] not in comments]
    # The last one may be cut.
    lines = lines[:-1] or lines
    size = path.stat().st_size
    links = round(size * len(lines) / (sum(map(len, lines)) + len(lines))) if lines else 0
    weighted = weights if weights is not None else bool(lines) and len(lines[0].replace(b",", b" ").split()) > 2
    held, peak = _memory.of_links(links, 0, weighted, not directed, workers)
    return Estimate(links, weighted, held, peak, memory_budget(init()))


def _links(
    source: Any,
    format: str | None,
    weights: Any,
    columns: tuple[str, str] | None,
    comments: str,
    delimiter: str | None,
    share: _text.Share | None,
) -> _text.Links:
    """Return the links of any source."""
    flag = weights if isinstance(weights, bool | None) else None
    name = weights if isinstance(weights, str) else None
    if isinstance(source, str | os.PathLike):
        return _of_file(Path(source), format, flag, name, columns, comments, delimiter, share)
    if isinstance(source, Network):
        return _of_network(source)
    # Without importing any of these libraries.
    home = type(source).__module__.partition(".")[0]
    if home == "networkx" or hasattr(source, "is_multigraph"):
        return _of_networkx(source, name or "weight", flag)
    if home == "igraph" or (home != "numpy" and hasattr(source, "get_edgelist")):
        return _of_igraph(source, name or "weight", flag)
    if home == "scipy":
        return _of_scipy(source, flag)
    if isinstance(source, DataSet | Table) or hasattr(source, "__arrow_c_stream__"):
        return _of_table(source, name, flag, columns, share is not None)
    return _of_arrays(source)


def _of_file(
    path: Path,
    format: str | None,
    weights: bool | None,
    name: str | None,
    columns: tuple[str, str] | None,
    comments: str,
    delimiter: str | None,
    share: _text.Share | None,
) -> _text.Links:
    whole = share is None
    share = _text.Share() if share is None else share
    format, suffix = share.agreed(lambda: _format_of(path, format, weights, comments, share))
    match format:
        case "edges":
            return _text.edge_list(path, weights, comments, delimiter, share)
        case "dimacs":
            return _text.dimacs(path, share)
        case "matrix_market":
            return _text.matrix_market(path, share)
        case "metis":
            return _text.metis(path, share)
        case "graphml":
            return _of_graphml(path, name or "weight", weights, share)
        case "parquet":
            table = read_parquet(path)
            _memory.check(str(path), table.count(), workers=share.workers)
            return _of_table(table, name, weights, columns, not whole)
        case "csv":
            table = read_csv(path, delimiter=delimiter or ("\t" if suffix == ".tsv" else ","))
            return _of_table(table, name, weights, columns, not whole)
    raise ValueError(
        f"format is 'edges', 'dimacs', 'matrix_market', 'metis', 'graphml', 'parquet' or 'csv', not {format!r}"
    )


def _format_of(
    path: Path, format: str | None, weights: bool | None, comments: str, share: _text.Share
) -> tuple[str, str]:
    """Return the format of a file and the end of its name, once its estimated memory is within the budget."""
    plain = path.name.lower()
    for packed in (".gz", ".bz2", ".xz", ".zst"):
        plain = plain.removesuffix(packed)
    suffix = Path(plain).suffix
    if format is None:
        format = _SUFFIXES.get(suffix, "edges")
        if suffix == ".co":
            raise ValueError(f"{path} has coordinates, not links: read the network, with coordinates={str(path)!r}")
        if suffix in (".csv", ".tsv") and _has_header(path, comments):
            format = "csv"
    if format in ("edges", "dimacs", "matrix_market"):
        expected = estimate(path, weights=weights)
        _memory.check(str(path), expected.links, weighted=expected.weighted, workers=share.workers)
    return format, suffix


def _of_graphml(path: Path, weight: str, weights: bool | None, share: _text.Share) -> _text.Links:
    """Return the links of GraphML, all on the first worker: networkx needs the whole tree, and links are dealt anyway."""
    if share.rank == 0:
        with _text.opened(path) as stream:
            found = _of_networkx(needed("networkx", f"reading {path.name}").read_graphml(stream), weight, weights)
    else:
        none = np.empty(0, np.int64)
        found = _text.Links(none, none, None)

    def complete(links: _text.Links, every: list[bool], rank: int) -> None:
        links.directed = every[0]

    found.summary, found.complete = found.directed, complete
    return found


def _has_header(path: Path, comments: str) -> bool:
    """Return whether the first line of a table is names: something in its first two fields is not an integer."""
    with _text.opened(path) as stream:
        for line in stream:
            if line.strip() and line[:1].decode(errors="replace") not in comments:
                fields = line.decode(errors="replace").replace("\t", ",").replace(";", ",").split(",")
                return not all(field.strip().lstrip("+-").isdigit() for field in fields[:2])
    return False


def _of_network(source: Network) -> _text.Links:
    ends = source.sources, source.targets
    kept = slice(None) if source.directed else ends[0] <= ends[1]
    weights = None if source.weights is None else source.weights[kept]
    named = [source.ids[end[kept]] for end in ends]
    return _text.Links(named[0], named[1], weights, source.directed, source.ids, dict(source.attributes))


def _of_table(
    source: Any, name: str | None, weights: bool | None, columns: tuple[str, str] | None, local: bool
) -> _text.Links:
    """Return the links of a table; of a DataSet those of all workers' rows, or if `local` of this one's."""
    if not isinstance(source, DataSet) and (local or not isinstance(source, Table)):
        source = from_arrow(source)
    schema = source.schema
    for column in (*(columns or ()), *([name] if name else [])):
        if column not in schema:
            raise ValueError(f"there is no column {column!r}; there are {', '.join(map(repr, schema))}")
    names = list(columns or list(schema)[:2])
    if len(names) < 2:
        raise ValueError(
            f"a network needs two columns, the ends of its links; there are {', '.join(map(repr, schema))}"
        )
    others = [column for column in schema if column not in names]
    numeric = ("Int", "UInt", "Float", "Decimal")
    if name is None and weights is not False and others and schema[others[0]].startswith(numeric):
        name = others[0]
    if name is None and weights:
        raise ValueError("weights=True, but the table has no third column of numbers")
    chosen = [*names, *([name] if name else [])]
    if isinstance(source, DataSet):
        chosen_rows = source.select(*chosen)
        source = chosen_rows.collect_local() if local else chosen_rows.collect()
    found = source.to_numpy()
    for column in chosen:
        if found[column].dtype == object and any(value is None for value in found[column]):
            row = next(at for at, value in enumerate(found[column]) if value is None)
            raise ValueError(f"column {column!r} is null in row {row}: leave such rows out with drop_nulls()")
    values = found[name].astype(np.float64) if name else None
    return _text.Links(found[names[0]], found[names[1]], values)


def _of_arrays(source: Any) -> _text.Links:
    if isinstance(source, tuple | list) and len(source) in (2, 3) and not np.isscalar(source[0]):
        sides = [side if isinstance(side, np.ndarray) else _array(side) for side in source[:2]]
        values = np.asarray(source[2], np.float64) if len(source) == 3 else None
        return _text.Links(sides[0], sides[1], values)
    if isinstance(source, np.ndarray) and source.ndim == 2 and source.shape[1] == 2:
        return _text.Links(source[:, 0], source[:, 1], None)
    raise TypeError(
        f"a network is read from a file, a table, a pair of arrays (sources, targets), an array (m, 2), or a graph of networkx, igraph "
        f"or SciPy, not from {type(source).__name__}"
    )


def _array(values: Any) -> NDArray[Any]:
    """Return ids as an array of integers or strings if all are, else of objects: NumPy would make strings of mixed ones."""
    listed = values.tolist() if hasattr(values, "tolist") else list(values)
    kinds = set(map(type, listed))
    if kinds <= {int} or kinds == {str}:
        try:
            return np.array(listed, None if listed else np.int64)
        except OverflowError:
            pass
    return objects(listed)


def _of_scipy(source: Any, weights: bool | None) -> _text.Links:
    if source.ndim != 2 or source.shape[0] != source.shape[1]:
        raise ValueError(f"the matrix of a network must be square, not of shape {source.shape}")
    matrix = source.tocoo()
    values = None
    if weights or (weights is None and not (matrix.data == 1).all()):
        values = matrix.data.astype(np.float64)
    n = source.shape[0]
    return _text.Links(matrix.row.astype(np.int64), matrix.col.astype(np.int64), values, nodes=np.arange(n))


def _of_igraph(source: Any, weight: str, weights: bool | None) -> _text.Links:
    ends = np.array(source.get_edgelist(), np.int64).reshape(-1, 2)
    values = None
    if weights is not False and weight in source.es.attributes():
        values = np.array(source.es[weight], np.float64)
    nodes: NDArray[Any] = np.arange(source.vcount())
    if "name" in source.vs.attributes():
        nodes = _array(source.vs["name"])
        ends = nodes[ends]
    return _text.Links(ends[:, 0], ends[:, 1], values, source.is_directed(), nodes)


def _of_networkx(source: Any, weight: str, weights: bool | None) -> _text.Links:
    """A missing weight is 1, as for networkx itself."""
    ids = list(source.nodes)
    ends = list(itertools.chain.from_iterable(source.edges()))
    every: Mapping[Any, int] = {node: at for at, node in enumerate(ids)}
    nodes = _array(ids)
    if nodes.dtype == object:
        # Equal ids of several types, such as 1 and 1.0, are one node for networkx and for a dictionary.
        flat = objects(ids)[np.fromiter((every[end] for end in ends), np.int64, len(ends))]
    else:
        flat = nodes[np.fromiter((every[end] for end in ends), np.int64, len(ends))]
    values = None
    if weights is not False:
        listed = [value for *_, value in source.edges(data=weight, default=None)]
        if weights or any(value is not None for value in listed):
            values = np.array([1.0 if value is None else value for value in listed], np.float64)
    return _text.Links(flat[::2], flat[1::2], values, source.is_directed(), nodes)

"""Types of the native half of the package."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from tidemill.mpi._request import Request as _MpiRequest

__version__: str

def launch_main(argv: Sequence[str], python: str) -> int: ...
def tune(
    comm: Any,
    path: str | None,
    budget_s: float,
    largest_bytes: int,
    report: Callable[[str, str, int, str, int, str | None, float, float], None],
) -> str: ...
def simulate(request: dict[str, Any]) -> dict[str, Any]: ...
def simulate_defaults(workload: str) -> dict[str, Any]: ...
def measure_links(comm: Any) -> dict[str, Any]: ...
def measure_control() -> dict[str, float]: ...
def time_collective(
    comm: Any, collective: str, bytes: int, algorithm: str, chunk_bytes: int, repeats: int
) -> list[float]: ...

# Kernels: private to `tidemill.ml`. Arrays are C-contiguous; `x` is (n, d) float32 or float64, `shift` (d,) of its dtype,
# weights (n,) and centres (k, d) float64.

_Rows = NDArray[Any]
_Float64 = NDArray[np.float64]
_Labels = NDArray[np.int32]

class KernelPool:
    def __init__(
        self,
        threads: int,
        mode: str = "bsp",
        affinity: str = "none",
        index: int = 0,
        workers: int = 1,
        spins: int = 2000,
    ) -> None: ...
    @property
    def threads(self) -> int: ...
    @property
    def bound(self) -> bool: ...

class KMeansFit:
    def __init__(
        self,
        pool: KernelPool,
        x: _Rows,
        shift: _Rows,
        weights: _Float64 | None,
        k: int,
        algorithm: str,
        steps_max: int,
    ) -> None: ...
    @property
    def algorithm(self) -> str: ...
    def step(
        self,
        pool: KernelPool,
        x: _Rows,
        shift: _Rows,
        weights: _Float64 | None,
        centres: _Float64,
        out: _Float64,
    ) -> tuple[int, int]: ...
    def labels(self) -> _Labels: ...

# Multidimensional scaling: positions, weights of columns and `out` float64, blocks of distances and weights float32 or float64.
class MdsDistances:
    def __init__(self, rows: int, n: int, first: int | None, storage: str) -> None: ...
    @staticmethod
    def of_vectors(rows: NDArray[np.float32], columns: NDArray[np.float32], first: int | None) -> MdsDistances: ...
    @property
    def nbytes(self) -> int: ...
    def fill(self, pool: KernelPool, at: int, block: _Rows, unit: float) -> None: ...
    def make_weights(self, storage: str) -> None: ...
    def weigh(self, pool: KernelPool, at: int, block: _Rows, unit: float) -> None: ...
    def guttman(
        self,
        pool: KernelPool,
        rows: _Float64,
        columns: _Float64,
        weights: _Float64 | None,
        shift: float,
        out: _Float64,
    ) -> None: ...
    def laplacian(
        self,
        pool: KernelPool,
        coefficients: str,
        points: _Float64,
        out: _Float64,
    ) -> None: ...
    def block(self, weights: bool, rows: tuple[int, int], columns: tuple[int, int]) -> NDArray[np.float32]: ...
    def first_difference(
        self,
        pool: KernelPool,
        weights: bool,
        columns: tuple[int, int],
        others: NDArray[np.float32],
        tolerance: float,
    ) -> tuple[int, int, float, float] | None: ...
    def components(self) -> NDArray[np.uint32]: ...

def mds_inspect(
    pool: KernelPool,
    block: _Rows,
    first: int | None,
    weights: _Rows | None,
    columns: _Float64 | None,
) -> tuple[float, tuple[int, int, str] | None, tuple[float, int] | None]: ...

# Networks: private to `tidemill.networks`. Nodes are uint32 (`NO_NODE` = 0xFFFFFFFF where there is none), offsets int64,
# weights float64. Arrays are one-dimensional and C-contiguous; every call releases the GIL.

_Nodes = NDArray[np.uint32]
_Int64 = NDArray[np.int64]

class CompressedRows:
    """Links by their source: those of node v stand at `offsets[v]:offsets[v + 1]`, sorted by target.

    Immutable. `columns` bounds the targets: equal to `rows` for a network, larger for a part of one, whose targets from
    `rows` on are ghosts.
    """

    def __init__(
        self, pool: KernelPool, offsets: _Int64, targets: _Nodes, weights: _Float64 | None, columns: int
    ) -> None: ...
    @staticmethod
    def of_links(
        pool: KernelPool,
        sources: _Nodes,
        targets: _Nodes,
        weights: _Float64 | None,
        rows: int,
        columns: int,
        duplicates: Literal["keep", "sum", "min", "max", "first"] = "keep",
        loops: bool = True,
        symmetric: bool = False,
    ) -> CompressedRows:
        """Sort links. Unweighted duplicates are merged into one by all but "keep"; "sum" gives them their number.

        `symmetric` adds the reverse of every link (a loop once) before duplicates are merged.
        """
    @staticmethod
    def of_block(
        pool: KernelPool,
        sources: _Nodes,
        targets: _Nodes,
        weights: _Float64 | None,
        rows: int,
        columns: int,
        first: int,
        duplicates: Literal["keep", "sum", "min", "max", "first"],
    ) -> tuple[CompressedRows, _Nodes]:
        """Sort links that leave the nodes from `first` on, whose sources count from 0; return their rows and the ghosts.

        `columns` is the number of all nodes. Ghosts are as for `part`, to which a block is otherwise equal.
        """
    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def links(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def offsets(self) -> _Int64:
        """(rows + 1,), read-only, without a copy; so are `targets` and `weights`, (links,)."""
    @property
    def targets(self) -> _Nodes: ...
    @property
    def weights(self) -> _Float64 | None: ...
    def transpose(self, pool: KernelPool) -> CompressedRows: ...
    def is_symmetric(self, pool: KernelPool) -> bool:
        """Whether every link has a reverse of the same weight."""
    def weight_sums(self, pool: KernelPool) -> _Float64:
        """Of each row the sum of its weights, or its number of links, (rows,)."""
    def part(self, pool: KernelPool, nodes: _Nodes) -> tuple[CompressedRows, _Nodes]:
        """The rows of `nodes`, and the ghosts: targets that are not among them, ascending.

        In the result node `nodes[i]` is i, and ghost `ghosts[j]` is `len(nodes) + j`; links keep their order.
        """

def network_parse(
    pool: KernelPool,
    data: bytes | NDArray[np.uint8],
    weighted: bool,
    delimiter: str | None = None,
    comments: str = "#%",
    tag: str | None = None,
    first_line: int = 1,
) -> tuple[NDArray[Any], NDArray[Any], _Float64 | None, int]:
    """Links of lines "source target [weight] ...": sources, targets, weights if `weighted`, and how many lines there are.

    Ids are int64, or uint64 where one exceeds int64. `delimiter` None is any run of spaces, tabs, commas and semicolons.
    Lines are skipped when empty or when their first character is one of `comments`. With `tag` (DIMACS: "a") the other
    lines must begin with it. Further fields are ignored. ValueError tells line (counted from `first_line`), content and
    trouble of the first bad line.
    """

def network_ids(pool: KernelPool, *values: NDArray[Any]) -> NDArray[Any]:
    """The distinct ids in arrays of int64 or uint64 (of one dtype), ascending."""

def network_find(pool: KernelPool, ids: NDArray[Any], values: NDArray[Any]) -> _Nodes:
    """The place of each of `values` in the ascending `ids`, `NO_NODE` where it is not among them."""

def network_pagerank(
    pool: KernelPool,
    incoming: CompressedRows,
    outgoing: _Float64,
    damping: float,
    tolerance: float,
    iterations_max: int,
    rule: Literal["l1", "largest"] = "l1",
    start: _Float64 | None = None,
    teleport: _Float64 | None = None,
    dangling: _Float64 | None = None,
    drop_dangling: bool = False,
) -> tuple[_Float64, int, float]:
    """Scores, iterations and the last change, which is below `tolerance` if they converged.

    `outgoing` is the sum of the weights (or the number) of the links that leave each node: `weight_sums` of the
    transpose. `start` and `teleport` default to 1 / n, `dangling` to `teleport`. Nothing is normalized: with `start` and
    `teleport` of ones and `drop_dangling` it is the unnormalized form.
    """

def network_bfs(
    pool: KernelPool, outgoing: CompressedRows, incoming: CompressedRows | None, source: int
) -> tuple[_Nodes, NDArray[np.int32]]:
    """Parents (`NO_NODE` where not reached; the source is its own) and levels (-1 where not reached).

    With `incoming` (`outgoing` itself where symmetric) large levels are searched from below.
    """

def network_shortest_paths(
    pool: KernelPool,
    outgoing: CompressedRows,
    sources: _Nodes,
    delta: float | None = None,
    cutoff: float | None = None,
) -> tuple[_Float64, _Nodes]:
    """Distances from the nearest source (inf where not reached) and parents (`NO_NODE` likewise; a source is its own).

    Nodes farther than `cutoff` count as not reached. ValueError names the first link whose weight is negative or NaN.
    """

def network_components(pool: KernelPool, outgoing: CompressedRows, incoming: CompressedRows | None) -> _Nodes:
    """Of each node the smallest node of its (weakly) connected component. `incoming` may be None or the transpose."""

def network_strong_components(pool: KernelPool, outgoing: CompressedRows) -> _Nodes:
    """Of each node the smallest node of its strongly connected component."""

def network_triangles(pool: KernelPool, links: CompressedRows) -> _Int64:
    """Of each node how many triangles it is in. Symmetric links; loops and duplicates are ignored."""

def network_weighted_triangles(pool: KernelPool, links: CompressedRows, opposite: bool = False) -> _Float64:
    """Of each node the sum over its triangles of the product of their weights, or of the weight of the `opposite` link.

    Symmetric links, no loops or duplicates.
    """

def network_betweenness(
    pool: KernelPool, outgoing: CompressedRows, sources: _Nodes, endpoints: bool = False, weighted: bool = False
) -> _Float64:
    """Sums over `sources` of the shares of shortest paths that lead over each node.

    Paths are shortest by number of links, or `weighted`, by the sum of weights, which are then above 0 and finite.
    Neither scaled nor halved. Parallel links count as several paths.
    """

def network_core_numbers(links: CompressedRows) -> _Nodes:
    """Core numbers. Symmetric links without loops."""

def network_label_propagation(
    pool: KernelPool,
    outgoing: CompressedRows,
    incoming: CompressedRows | None,
    labels: _Nodes,
    iterations_max: int,
) -> tuple[_Nodes, int]:
    """Each node takes its neighbors' most frequent label, the smallest of several, all at once; until nothing changes.

    With `incoming` the neighbors over links of both directions count, as in LDBC Graphalytics.
    """

def network_label_round(
    pool: KernelPool,
    outgoing: CompressedRows,
    labels: _Nodes,
    labels_max: int,
    incoming: CompressedRows | None = None,
    incoming_labels: _Nodes | None = None,
) -> tuple[_Nodes, int]:
    """A round on a part: labels of own nodes, and how many changed. Labels are beside columns, less than `labels_max`."""

def network_spanning_forest(pool: KernelPool, links: CompressedRows, maximum: bool = False) -> tuple[_Nodes, _Int64]:
    """A minimum (or maximum) spanning forest: sources and places (in `targets`, `weights`) of its links. Symmetric links."""

def network_maximum_flow(outgoing: CompressedRows, source: int, sink: int) -> tuple[float, _Float64, NDArray[np.bool_]]:
    """The value, the flow over each link, and which nodes are on the source's side of a minimum cut.

    Weights are capacities; without weights each is 1. ValueError names the first that is negative or NaN, and tells
    where the flow is unbounded.
    """

def network_louvain(
    pool: KernelPool,
    links: CompressedRows,
    resolution: float = 1.0,
    threshold: float = 1e-7,
    seed: int = 0,
    levels_max: int | None = None,
    refined: bool = False,
) -> tuple[_Nodes, float, int]:
    """Communities from 0, their modularity, and levels; `refined` is Leiden's method.

    Symmetric links; repeatable by seed on any number of threads.
    """

def network_modularity(links: CompressedRows, labels: _Nodes, resolution: float = 1.0) -> float: ...

# Parts of networks. A part's rows are those of its own nodes, 0..rows; its other columns are ghosts.

def network_partition(
    links: CompressedRows, parts: int, passes: int = 10, imbalance: float = 0.05
) -> tuple[_Nodes, int]:
    """The part of each node by restreamed linear deterministic greedy, and how many links are cut. Symmetric links."""

def network_cut(pool: KernelPool, links: CompressedRows, parts: _Nodes) -> int:
    """How many links join nodes of different parts."""

def network_pagerank_step(
    pool: KernelPool,
    incoming: CompressedRows,
    contributions: _Float64,
    base: _Float64 | float,
    damping: float,
    values: _Float64,
) -> tuple[float, float]:
    """Set `values` (rows,) to base + damping * the sum over links of weight * contribution of the source; L1 and largest change.

    `contributions`, (columns,), is value / outgoing of every node. A row's sum does not depend on threads or parts.
    """

def network_pagerank_sweeps(
    incoming: CompressedRows,
    contributions: _Float64,
    inverse: _Float64,
    base: _Float64 | float,
    damping: float,
    values: _Float64,
    sweeps_max: int,
    tolerance: float,
) -> tuple[int, float, float]:
    """The same in place, one row after the other: `contributions` of the own nodes follow as value * `inverse` (rows,).

    Sweeps made, L1 and largest change of the last; ends when the largest is below `tolerance`.
    """

def network_relax(
    outgoing: CompressedRows,
    distances: _Float64,
    parents: _Nodes | None,
    active: _Nodes | None,
    rounds_max: int | None = None,
) -> tuple[_Nodes, _Nodes, int]:
    """Lower `distances` (columns,) over the part's links from the `active` own nodes (None: all that are reached).

    With `rounds_max` in so many rounds of all active nodes, else in the order of distances until nothing changes.
    Returns the columns that were lowered, ascending, the own nodes that are still active, and the links relaxed.
    `parents`, (columns,), gets columns. Unweighted links are 1 long. ValueError as of `network_shortest_paths`.
    """

def network_lower_labels(
    links: CompressedRows, labels: _Int64, active: _Nodes | None, sweeps_max: int | None = None
) -> tuple[_Nodes, _Nodes, int]:
    """Give both ends of the links of the `active` own nodes (None: all) the lower of their `labels`, (columns,).

    Returns as `network_relax`.
    """

def network_lower_along(
    links: CompressedRows, values: _Int64, groups: _Int64, active: _Nodes
) -> tuple[_Nodes, _Nodes, int]:
    """Lower `values` of targets to those of their sources, within `groups`, from `active` own nodes; all are (columns,).

    Returns as `network_relax`.
    """

def network_upward(pool: KernelPool, links: CompressedRows, degrees: _Int64, numbers: _Nodes) -> CompressedRows:
    """The links of own nodes to columns of higher degree or, of equal degree, higher number; rows ascend by column."""

def network_lists(
    pool: KernelPool,
    offsets: _Int64,
    numbers: _Nodes,
    weights: _Float64 | None,
    own: tuple[int, int],
    ghosts: _Nodes,
) -> CompressedRows:
    """Lists of nodes by number as rows of a part's columns, of nodes `own[0]:own[1]` and `ghosts`, without other nodes."""

def network_part_triangles(
    pool: KernelPool, up: CompressedRows, lists: CompressedRows, first: int, counts: _Int64
) -> None:
    """Add to `counts` (columns,) the triangles with a middle among the columns from `first` on, whose rows are `lists`.

    `up` is of `network_upward`; `lists` is that, for own nodes, or of `network_lists`.
    """

def network_part_weighted_triangles(
    pool: KernelPool, up: CompressedRows, lists: CompressedRows, first: int, sums: _Float64, opposite: bool = False
) -> None:
    """The same for sums as of `network_weighted_triangles`."""

def network_row_sums(
    pool: KernelPool, links: CompressedRows, values: _Float64, width: int, wanted: NDArray[np.bool_]
) -> _Float64:
    """Of each `wanted` row the sums of its targets' values, (rows * width,), and zeros; `values` are (columns * width,)."""

def network_push(
    links: tuple[_Int64, _Int64, _Int64],
    new_links: tuple[_Int64, _Int64],
    outgoing: _Float64,
    scores: _Float64,
    residuals: _Float64,
    candidates: _Int64,
    share: int,
    shares: int,
    damping: float,
    tolerance: float,
    several: bool,
    rounds_max: int | None = None,
    weights: tuple[_Float64, _Float64] | None = None,
) -> tuple[_Int64, _Float64, _Int64, int]:
    """Hand on residuals of PageRank that exceed `tolerance`, from the `candidates` on, in place.

    `links` are where each slot's begin, their keys (slot << 32 | number) and their counts; `new_links` keys and counts that
    are added to these. `weights` are those of both tables; those of new links replace the others. `outgoing` is the number
    of links that leave each slot, or the sum of their weights. Returns numbers of other shares' nodes and what their residuals get, own slots whose residual still
    exceeds `tolerance` after `rounds_max`, and the links looked at.
    """

def kernel_cpus() -> int: ...
def kernel_instruction_sets() -> list[str]: ...
def kmeans_statistics(
    pool: KernelPool, x: _Rows, shift: _Rows, weights: _Float64 | None
) -> tuple[_Float64, _Float64, float, bool]: ...
def kmeans_assign(pool: KernelPool, x: _Rows, shift: _Rows, centres: _Float64) -> _Labels: ...
def kmeans_inertia(
    pool: KernelPool, x: _Rows, shift: _Rows, weights: _Float64 | None, centres: _Float64, labels: _Labels
) -> float: ...
def kmeans_farthest(
    x: _Rows, shift: _Rows, weights: _Float64 | None, centres: _Float64, labels: _Labels, count: int
) -> list[tuple[float, int]]: ...
def kmeans_transform(pool: KernelPool, x: _Rows, shift: _Rows, centres: _Float64) -> _Rows: ...
def kmeans_nearest_update(
    pool: KernelPool,
    x: _Rows,
    shift: _Rows,
    weights: _Float64 | None,
    seeds: _Float64,
    first: int,
    closest: _Float64,
    index: NDArray[np.uint32],
) -> float: ...
def kmeans_potentials(
    pool: KernelPool, x: _Rows, shift: _Rows, weights: _Float64 | None, trials: _Float64, closest: _Float64
) -> list[float]: ...
def kmeans_draw(
    x: _Rows,
    shift: _Rows,
    weights: _Float64 | None,
    closest: _Float64,
    scale: float,
    seed: int,
    round: int,
    offset: int,
) -> list[int]: ...
def kmeans_locate(
    x: _Rows, shift: _Rows, weights: _Float64 | None, closest: _Float64, targets: Sequence[float]
) -> list[int]: ...

# Communication: the base classes of `tidemill.mpi`. Messages are buffers or lists, see there.

class Worker:
    @staticmethod
    def join(transport: str, connect: str, stall_warning: float) -> Worker: ...
    @staticmethod
    def alone(transport: str, connect: str, stall_warning: float) -> Worker: ...
    def world(self) -> Comm: ...
    def solo(self) -> Comm: ...
    def report_failure(self, traceback: str) -> None: ...
    def leave(self) -> None: ...
    def check(self) -> None: ...
    def set_locator(self, locate: Callable[[], str | None]) -> None: ...
    def share(self) -> tuple[int, int, int, int, int]: ...
    def threads(self) -> list[int]: ...
    def workers(self) -> list[dict[str, Any]]: ...

def share_of_process(bound: bool) -> tuple[int, int, int, int, int]: ...

class Datatype:
    def __new__(cls, element: str | None = None) -> Self: ...
    @property
    def _element(self) -> str | None: ...
    @property
    def _element_bytes(self) -> int: ...

class Operation:
    def __new__(
        cls, name: str | None = None, function: Callable[..., Any] | None = None, commutative: bool = False
    ) -> Self: ...
    def _is_commutative(self) -> bool: ...

def reduce_local(inbuf: Any, inoutbuf: Any, op: Operation) -> None: ...

class Status:
    _nbytes: int
    def __new__(cls, status: Status | None = None) -> Self: ...
    def Get_source(self) -> int: ...
    def Set_source(self, source: int) -> None: ...
    def Get_tag(self) -> int: ...
    def Set_tag(self, tag: int) -> None: ...
    def Get_error(self) -> int: ...
    def Set_error(self, error: int) -> None: ...
    def Is_cancelled(self) -> bool: ...
    def Set_cancelled(self, flag: bool) -> None: ...
    def _copy_from(self, other: Status) -> None: ...

class Memory:
    def __new__(cls, nbytes: int) -> Self: ...
    def tobytes(self) -> bytes: ...

class Request:
    def __new__(cls, request: Request | None = None, persistent: bool = False) -> Self: ...
    def Wait(self, status: Status | None = None) -> Literal[True]: ...
    def Test(self, status: Status | None = None) -> bool: ...
    def Get_status(self, status: Status | None = None) -> bool: ...
    def Cancel(self) -> None: ...
    def _wait(self, status: Status | None = None) -> Any: ...
    def _poll(self) -> bool: ...
    @staticmethod
    def _wait_all(requests: Sequence[Request], statuses: Sequence[Status]) -> None: ...
    @staticmethod
    def _wait_any(requests: Sequence[Request]) -> bool: ...
    def _release(self) -> None: ...
    def _adopt(self, other: Request) -> None: ...
    def _drive(self, driver: Any) -> None: ...
    @property
    def _is_idle(self) -> bool: ...
    @property
    def _shared(self) -> int: ...

class MatchedMessage:
    def __new__(cls, message: MatchedMessage | None = None, nobody: bool = False) -> Self: ...
    def Recv(self, buf: Any, status: Status | None = None) -> None: ...
    def Irecv(self, buf: Any) -> _MpiRequest: ...
    def _recv_parcel(self) -> _Parcel | None: ...
    def _irecv_parcel(self, finish: Callable[[Any, list[Any]], Any]) -> _MpiRequest: ...
    @property
    def _is_null(self) -> bool: ...
    @property
    def _is_nobody(self) -> bool: ...
    @property
    def _shared(self) -> int: ...

# Body, arrays, source, tag, bytes of the message.
_Parcel = tuple[Any, list[Any], int, int, int]

class Comm:
    def __new__(cls, comm: Comm | None = None) -> Self: ...
    def Get_rank(self) -> int: ...
    def Get_size(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def _adapt(self, bytes: int) -> None: ...
    def _recent_waits(self) -> list[tuple[int, float]]: ...
    def overlay(self) -> str: ...
    def _is_usable(self) -> bool: ...
    def _is_same(self, other: Comm) -> bool: ...
    def _id(self) -> int: ...
    def _is_among(self, other: Comm) -> bool: ...
    def _world_ranks(self) -> list[int]: ...
    def _rename(self, name: str) -> None: ...
    def _name(self) -> str: ...
    def _free(self) -> None: ...
    def _dup(self) -> Comm: ...
    def _split(self, color: int | None, key: int) -> Comm | None: ...
    def _create_group(self, ranks: Sequence[int], tag: int) -> Comm: ...
    def Send(self, buf: Any, dest: int, tag: int = 0) -> None: ...
    def Bsend(self, buf: Any, dest: int, tag: int = 0) -> None: ...
    def Ssend(self, buf: Any, dest: int, tag: int = 0) -> None: ...
    def Rsend(self, buf: Any, dest: int, tag: int = 0) -> None: ...
    def Isend(self, buf: Any, dest: int, tag: int = 0) -> _MpiRequest: ...
    def Ibsend(self, buf: Any, dest: int, tag: int = 0) -> _MpiRequest: ...
    def Issend(self, buf: Any, dest: int, tag: int = 0) -> _MpiRequest: ...
    def Irsend(self, buf: Any, dest: int, tag: int = 0) -> _MpiRequest: ...
    def Recv(self, buf: Any, source: int = -1, tag: int = -1, status: Status | None = None) -> None: ...
    def Irecv(self, buf: Any, source: int = -1, tag: int = -1) -> _MpiRequest: ...
    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = -1,
        recvtag: int = -1,
        status: Status | None = None,
    ) -> None: ...
    def Probe(self, source: int = -1, tag: int = -1, status: Status | None = None) -> bool: ...
    def Iprobe(self, source: int = -1, tag: int = -1, status: Status | None = None) -> bool: ...
    def _match(self, message: MatchedMessage, source: int, tag: int, status: Status | None, block: bool) -> bool: ...
    @staticmethod
    def _check_tag(tag: int, receiving: bool) -> None: ...
    def _isend_parcel(
        self, body: bytes, arrays: Sequence[Any], dest: int, tag: int, synchronous: bool = False
    ) -> _MpiRequest: ...
    def _send_parcel(
        self, body: bytes, arrays: Sequence[Any], dest: int, tag: int, synchronous: bool = False
    ) -> None: ...
    def _recv_parcel(self, source: int, tag: int) -> _Parcel | None: ...
    def _irecv_parcel(self, source: int, tag: int, finish: Callable[[Any, list[Any]], Any]) -> _MpiRequest: ...
    def _isend_hidden(self, buf: Any, dest: int, key: int) -> _MpiRequest: ...
    def _irecv_hidden(self, buf: Any, source: int, key: int) -> _MpiRequest: ...
    def Barrier(self, *, algorithm: str | None = None) -> None: ...
    def Ibarrier(self, *, algorithm: str | None = None) -> _MpiRequest: ...
    def Bcast(self, buf: Any, root: int = 0, *, algorithm: str | None = None, repeatable: bool = False) -> None: ...
    def Ibcast(
        self, buf: Any, root: int = 0, *, algorithm: str | None = None, repeatable: bool = False
    ) -> _MpiRequest: ...
    def Reduce(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Operation | None = None,
        root: int = 0,
        *,
        algorithm: str | None = None,
        repeatable: bool = False,
    ) -> None: ...
    def Ireduce(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Operation | None = None,
        root: int = 0,
        *,
        algorithm: str | None = None,
        repeatable: bool = False,
    ) -> _MpiRequest: ...
    def Allreduce(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Operation | None = None,
        *,
        algorithm: str | None = None,
        repeatable: bool = False,
    ) -> None: ...
    def Iallreduce(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Operation | None = None,
        *,
        algorithm: str | None = None,
        repeatable: bool = False,
    ) -> _MpiRequest: ...
    def Scan(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Operation | None = None,
        *,
        algorithm: str | None = None,
        repeatable: bool = False,
    ) -> None: ...
    def Iscan(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Operation | None = None,
        *,
        algorithm: str | None = None,
        repeatable: bool = False,
    ) -> _MpiRequest: ...
    def Exscan(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Operation | None = None,
        *,
        algorithm: str | None = None,
        repeatable: bool = False,
    ) -> None: ...
    def Iexscan(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Operation | None = None,
        *,
        algorithm: str | None = None,
        repeatable: bool = False,
    ) -> _MpiRequest: ...
    def Reduce_scatter_block(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Operation | None = None,
        *,
        algorithm: str | None = None,
        repeatable: bool = False,
    ) -> None: ...
    def Ireduce_scatter_block(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Operation | None = None,
        *,
        algorithm: str | None = None,
        repeatable: bool = False,
    ) -> _MpiRequest: ...
    def Reduce_scatter(
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Sequence[int] | None = None,
        op: Operation | None = None,
        *,
        algorithm: str | None = None,
        repeatable: bool = False,
    ) -> None: ...
    def Ireduce_scatter(
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Sequence[int] | None = None,
        op: Operation | None = None,
        *,
        algorithm: str | None = None,
        repeatable: bool = False,
    ) -> _MpiRequest: ...
    def Gather(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, *, algorithm: str | None = None, repeatable: bool = False
    ) -> None: ...
    def Igather(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, *, algorithm: str | None = None, repeatable: bool = False
    ) -> _MpiRequest: ...
    def Gatherv(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, *, algorithm: str | None = None, repeatable: bool = False
    ) -> None: ...
    def Igatherv(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, *, algorithm: str | None = None, repeatable: bool = False
    ) -> _MpiRequest: ...
    def Allgather(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, repeatable: bool = False
    ) -> None: ...
    def Iallgather(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, repeatable: bool = False
    ) -> _MpiRequest: ...
    def Allgatherv(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, repeatable: bool = False
    ) -> None: ...
    def Iallgatherv(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, repeatable: bool = False
    ) -> _MpiRequest: ...
    def Scatter(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, *, algorithm: str | None = None, repeatable: bool = False
    ) -> None: ...
    def Iscatter(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, *, algorithm: str | None = None, repeatable: bool = False
    ) -> _MpiRequest: ...
    def Scatterv(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, *, algorithm: str | None = None, repeatable: bool = False
    ) -> None: ...
    def Iscatterv(
        self, sendbuf: Any, recvbuf: Any, root: int = 0, *, algorithm: str | None = None, repeatable: bool = False
    ) -> _MpiRequest: ...
    def Alltoall(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, repeatable: bool = False
    ) -> None: ...
    def Ialltoall(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, repeatable: bool = False
    ) -> _MpiRequest: ...
    def Alltoallv(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, repeatable: bool = False
    ) -> None: ...
    def Ialltoallv(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, repeatable: bool = False
    ) -> _MpiRequest: ...
    def Alltoallw(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, repeatable: bool = False
    ) -> None: ...
    def Ialltoallw(
        self, sendbuf: Any, recvbuf: Any, *, algorithm: str | None = None, repeatable: bool = False
    ) -> _MpiRequest: ...

# DataSets: private to `tidemill.dataset`.

_SortKey = tuple[NativeExpr, bool, bool]  # expression, descending, nulls last
_Pairs = Sequence[tuple[str, str]]

class NativeExpr:
    def check(self) -> None: ...
    @staticmethod
    def column(name: str) -> NativeExpr: ...
    @staticmethod
    def literal(value: object) -> NativeExpr: ...
    @staticmethod
    def case(branches: Sequence[tuple[NativeExpr, NativeExpr]], otherwise: NativeExpr | None) -> NativeExpr: ...
    def binary(self, op: str, right: NativeExpr) -> NativeExpr: ...
    def negative(self) -> NativeExpr: ...
    def invert(self) -> NativeExpr: ...
    def is_null(self) -> NativeExpr: ...
    def is_in(self, values: Sequence[NativeExpr]) -> NativeExpr: ...
    def like(self, pattern: NativeExpr, ignore_case: bool) -> NativeExpr: ...
    def cast(self, name: str, strict: bool = True) -> NativeExpr: ...
    def alias(self, name: str) -> NativeExpr: ...
    @property
    def output_name(self) -> str: ...
    def over(
        self,
        partition_by: Sequence[NativeExpr],
        order_by: Sequence[_SortKey],
        rows: tuple[int | None, int | None] | None = None,
    ) -> NativeExpr: ...

class NativeKeyedEngine:
    def __init__(
        self,
        logic: object,
        keys: object,
        ttl: int | None = None,
        saves: bool = False,
        spill_dir: str | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None: ...
    def rows(
        self, keys: NativeTable, buckets: Sequence[int], ends: Sequence[int], rows: NativeTable
    ) -> list[NativeTable]: ...
    def time(self, now: int) -> tuple[list[NativeTable], bool]: ...
    def next_alarm(self) -> int | None: ...
    def ring(self) -> tuple[list[NativeTable], bool]: ...
    def held_bytes(self) -> int: ...
    def spill(self, keys: int | None = None) -> None: ...
    def snapshot(self, whole: bool) -> list[tuple[int, bool, bytes]]: ...
    def release(self, buckets: Sequence[int]) -> list[tuple[int, bytes]]: ...
    def restore(self, now: int, bucket: int, parts: Sequence[bytes]) -> None: ...
    def entries(self) -> list[tuple[NativeTable, int, Any, list[int], list[int], int]]: ...
    def stored(self) -> int: ...
    def due(self) -> tuple[int, int]: ...

class NativeTable:
    @staticmethod
    def take(table: object) -> NativeTable: ...
    @staticmethod
    def empty(schema: object) -> NativeTable: ...
    @staticmethod
    def concat(first: NativeTable, others: Sequence[NativeTable]) -> NativeTable: ...
    @staticmethod
    def unite(tables: Sequence[NativeTable], names: Sequence[str]) -> NativeTable: ...
    @staticmethod
    def from_lists(columns: Sequence[tuple[str, list[Any], str | None]]) -> NativeTable: ...
    @staticmethod
    def from_lists_as(columns: Sequence[list[Any]], schema: Any) -> NativeTable: ...
    @property
    def untyped(self) -> list[str]: ...
    @staticmethod
    def from_plain(columns: dict[str, Any]) -> NativeTable | None: ...
    @staticmethod
    def from_ipc(data: bytes) -> NativeTable: ...
    def to_ipc(self) -> bytes: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def fields(self) -> list[tuple[str, str]]: ...
    def slice(self, skip: int, count: int) -> NativeTable: ...
    def to_dict(self) -> dict[str, list[Any]]: ...
    def cast(self, schema: object) -> NativeTable: ...
    def beside(self, other: NativeTable) -> NativeTable: ...
    def filter(self, keep: Sequence[bool]) -> NativeTable: ...
    def lists(self, column: str) -> list[NativeTable]: ...
    def column(self, name: str) -> list[Any]: ...
    def codes(self, name: str) -> tuple[bytes, NativeTable]: ...
    def to_arrays(self) -> list[tuple[str, str, NDArray[np.uint8] | None]]: ...
    def with_nulls(self, nulls: Sequence[bool]) -> NativeTable: ...
    def in_lists(self, name: str, size: int) -> NativeTable: ...
    def format(self, types: bool = False) -> str: ...
    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...
    def __arrow_c_schema__(self) -> object: ...

#: Is told of rows read, and of how many there are, if that is known.
Watch = Callable[[int, int | None], object]

class NativeDataSet:
    @property
    def names(self) -> list[str]: ...
    @property
    def is_lenient(self) -> bool: ...
    @property
    def is_in_order(self) -> bool: ...
    @property
    def fields(self) -> list[tuple[str, str]]: ...
    def __arrow_c_schema__(self) -> object: ...
    def empty(self) -> NativeTable: ...
    def select(self, columns: Sequence[NativeExpr]) -> NativeDataSet: ...
    def with_columns(self, columns: Sequence[NativeExpr]) -> NativeDataSet: ...
    def drop(self, names: Sequence[str]) -> NativeDataSet: ...
    def rename(self, pairs: _Pairs) -> NativeDataSet: ...
    def filter(self, predicate: NativeExpr) -> NativeDataSet: ...
    def aggregate(self, keys: Sequence[NativeExpr], aggregates: Sequence[NativeExpr]) -> NativeDataSet: ...
    def process(
        self,
        name: str,
        keys: list[str],
        factory: Callable[[], object],
        schema: object,
        keeps: object = None,
        ttl: int | None = None,
    ) -> NativeDataSet: ...
    def bsp(
        self,
        name: str,
        factory: Callable[..., object],
        schema: object,
        by: list[str],
        window: NativeExpr | None = None,
        copies: int | None = None,
        on_busy: str = "wait",
        time: str | None = None,
    ) -> NativeDataSet: ...
    def named(self, name: str) -> NativeDataSet: ...
    def shuffled(self) -> NativeDataSet: ...
    def is_stream(self) -> bool: ...
    def join(
        self,
        right: NativeDataSet,
        on: _Pairs,
        how: str,
        suffix: str,
        condition: NativeExpr | None,
        ttl: int | None = None,
    ) -> NativeDataSet: ...
    def sort(self, by: Sequence[_SortKey]) -> NativeDataSet: ...
    def with_row_index(self, name: str, first: int, by: Sequence[_SortKey]) -> NativeDataSet: ...
    def limit(self, skip: int, count: int | None = None) -> NativeDataSet: ...
    def distinct(self, subset: Sequence[str], ttl: int | None = None) -> NativeDataSet: ...
    def union(self, other: NativeDataSet) -> NativeDataSet: ...
    def explode(self, names: Sequence[str]) -> NativeDataSet: ...
    def repartition(self, partitions: int, by: Sequence[NativeExpr]) -> NativeDataSet: ...
    def map_batches(
        self, name: str, function: Callable[[NativeTable], list[NativeTable]], schema: object
    ) -> NativeDataSet: ...
    def collect(self, engine: QueryEngine, watch: Watch | None = None) -> NativeTable: ...
    def collect_first(
        self, engine: QueryEngine, comm: Comm | None, rows: int, watch: Watch | None = None
    ) -> NativeTable: ...
    def collect_in_order(
        self, engine: QueryEngine, comm: Comm, watch: Watch | None = None
    ) -> tuple[NativeTable, list[int]]: ...
    def collect_on(self, engine: QueryEngine, comm: Comm, to: int | str, watch: Watch | None = None) -> NativeTable: ...
    def counted(self) -> NativeDataSet: ...
    def explain(self, engine: QueryEngine, how: str) -> str: ...
    def explain_on(self, engine: QueryEngine, comm: Comm, analyze: bool, watch: Watch | None = None) -> str: ...
    def write(
        self,
        engine: QueryEngine,
        comm: Comm | None,
        dir: str,
        format: str,
        *,
        compression: str,
        partition_by: Sequence[str],
        overwrite: bool,
        storage_options: Mapping[str, str] = ...,
        delimiter: str = ",",
        header: bool = True,
        watch: Watch | None = None,
    ) -> int: ...

def memory_bytes() -> int | None: ...
def address_bytes_left() -> int | None: ...

class QueryEngine:
    def __init__(
        self,
        threads: int,
        workers: int,
        memory_bytes: int | None = None,
        spill_dir: str | None = None,
        active_workers: int | None = None,
    ) -> None: ...
    def beside(self, workers: int) -> QueryEngine: ...
    def call(self, name: str, args: Sequence[NativeExpr]) -> NativeExpr: ...
    def aggregate(
        self,
        name: str,
        args: Sequence[NativeExpr],
        distinct: bool = False,
        filter: NativeExpr | None = None,
        order_by: Sequence[_SortKey] = (),
    ) -> NativeExpr: ...
    def count_rows(self) -> NativeExpr: ...
    def window(self, name: str, args: Sequence[NativeExpr], filter: NativeExpr | None = None) -> NativeExpr: ...
    def table(self, table: NativeTable) -> NativeDataSet: ...
    def read_records(
        self, paths: Sequence[str], columns: Sequence[tuple[str, int]], storage_options: Mapping[str, str] = ...
    ) -> NativeDataSet: ...
    def read_npy(
        self, paths: Sequence[str], columns: Sequence[str] | None = None, storage_options: Mapping[str, str] = ...
    ) -> NativeDataSet: ...
    def find_files(self, paths: Sequence[str], storage_options: Mapping[str, str] = ...) -> list[str]: ...
    @staticmethod
    def find_local_files(paths: Sequence[str]) -> list[tuple[str, int, int]]: ...
    def own_files(
        self, schema: NativeTable, mine: NativeDataSet | None, is_lenient: bool, worker: int, workers: int
    ) -> NativeDataSet: ...
    def read_bytes(self, path: str, storage_options: Mapping[str, str] = ...) -> bytes: ...
    def settle(self, path: str, storage_options: Mapping[str, str] = ...) -> bool: ...
    def part(self, table: NativeTable, worker: int, workers: int) -> NativeDataSet: ...
    def sql(self, query: str, tables: Sequence[tuple[str, NativeDataSet]]) -> NativeDataSet: ...
    def read(
        self,
        paths: Sequence[str],
        format: str,
        schema: object = None,
        infer_rows: int = 1000,
        *,
        header: bool = True,
        delimiter: str = ",",
        quote: str = '"',
        comment: str | None = None,
        newlines_in_values: bool = False,
        null: str | None = None,
        storage_options: Mapping[str, str] = ...,
        on_error: str = "raise",
        quarantine: str | None = None,
        overrides: object = None,
        strict: bool = False,
        encoding: str | None = None,
        file_column: str | None = None,
    ) -> NativeDataSet: ...
    def take_bad_rows(self) -> tuple[int, tuple[str, int, str] | None]: ...

def end_calls() -> None: ...

# Task graphs: private to `tidemill.graph`.

_Worker = tuple[str, float, int, str | None]  # host, cores, bytes of memory, location
_Planned = Sequence[tuple[str, Sequence[int]]]
_Key = tuple[str, bool, bool | None]  # column, descending, nulls first

class NativeTaskCopy:
    @property
    def task(self) -> str: ...
    @property
    def copy(self) -> int: ...
    @property
    def copies(self) -> int: ...
    @property
    def worker(self) -> int: ...
    @property
    def workers(self) -> int: ...
    @property
    def cancelled(self) -> bool: ...
    def join_thread(self) -> None: ...
    def comm(self) -> Comm | None: ...
    def begin(self, thread: int) -> bool: ...
    def end(self, error: str | None, value: object) -> None: ...

class NativeCopy(NativeTaskCopy):
    def empty(self, port: int) -> NativeTable: ...
    def receive(self, port: int | None = None) -> tuple[int, NativeTable] | None: ...
    def send(self, port: int, table: NativeTable) -> None: ...
    def wanted(self, port: int) -> bool: ...
    def flush(self, port: int) -> None: ...

class NativeStreamCopy(NativeTaskCopy):
    @property
    def restored(self) -> bytes | None: ...
    @property
    def durable(self) -> bytes | None: ...
    def send(self, port: int, table: NativeTable) -> None: ...
    def wanted(self, port: int) -> bool: ...
    def flush(self, port: int) -> None: ...
    def position(self, pickled: bytes) -> None: ...
    def next(self) -> tuple[NativeTable | None] | None: ...
    def done(self) -> None: ...
    def state(self, pickled: bytes) -> None: ...

class NativeReduction:
    @staticmethod
    def of_columns(columns: _Pairs) -> NativeReduction: ...
    @staticmethod
    def of_function(
        name: str,
        columns: Sequence[str],
        function: Callable[[NativeTable, Sequence[int], int], NativeTable],
        elementwise: str | None = None,
    ) -> NativeReduction: ...

class NativeExchange:
    @staticmethod
    def direct() -> NativeExchange: ...
    @staticmethod
    def broadcast(
        along: str | None = None, message_bytes: int | None = None, message_rate: int | None = None
    ) -> NativeExchange: ...
    @staticmethod
    def gather(to: int, along: str | None = None) -> NativeExchange: ...
    @staticmethod
    def partition(columns: Sequence[str], buckets: int, owners: Sequence[int] | None = None) -> NativeExchange: ...
    @staticmethod
    def round_robin() -> NativeExchange: ...
    @staticmethod
    def partition_with(name: str, function: Callable[[NativeTable, int], Any]) -> NativeExchange: ...
    @staticmethod
    def ranges(keys: Sequence[_Key]) -> NativeExchange: ...
    @staticmethod
    def sort(keys: Sequence[_Key], sample_all: bool) -> NativeExchange: ...
    @staticmethod
    def reduce(
        reduction: NativeReduction,
        to: int,
        along: str | None = None,
        message_bytes: int | None = None,
        message_rate: int | None = None,
    ) -> NativeExchange: ...
    @staticmethod
    def all_reduce(
        reduction: NativeReduction,
        along: str | None = None,
        message_bytes: int | None = None,
        message_rate: int | None = None,
    ) -> NativeExchange: ...
    @staticmethod
    def keyed_reduce(
        columns: Sequence[str],
        reduction: NativeReduction,
        buckets: int,
        along: str | None = None,
        message_bytes: int | None = None,
        message_rate: int | None = None,
    ) -> NativeExchange: ...
    @staticmethod
    def keyed_gather(columns: Sequence[str], buckets: int) -> NativeExchange: ...
    @staticmethod
    def join(kind: str, on: _Pairs, broadcast_right: bool, buckets: int) -> NativeExchange: ...
    @staticmethod
    def union(by: NativeExchange) -> NativeExchange: ...
    def by_rounds(
        self, partial: bool, rows: int | None = None, slices: tuple[int, int, int, int] | None = None
    ) -> NativeExchange: ...
    def describe(self) -> str: ...

class NativeGraph:
    def __init__(self, name: str) -> None: ...
    def add(
        self,
        name: str,
        start: Callable[[NativeCopy | NativeStreamCopy], None],
        inputs: Sequence[tuple[str, object]],
        outputs: Sequence[tuple[str, object]],
        *,
        copies: int | None,
        per_worker: int,
        cores: float,
        memory_bytes: int,
        data_hosts: Sequence[Sequence[str]],
        comm: bool,
    ) -> int: ...
    def connect(
        self, sources: Sequence[tuple[int, str]], target: tuple[int, str], exchange: NativeExchange
    ) -> None: ...
    def feedback(self, source: tuple[int, str], target: tuple[int, str], exchange: NativeExchange) -> None: ...
    def streaming(
        self, starts: Sequence[tuple[Callable[[NativeCopy | NativeStreamCopy], None], bool]]
    ) -> NativeGraph: ...
    def resized(self, copies: Sequence[tuple[int, int]]) -> NativeGraph: ...
    def with_service(self, name: str, start: Callable[[NativeCopy | NativeStreamCopy], None]) -> NativeGraph: ...
    def check(self, workers: int) -> None: ...
    def plan(self, placement: str | _Planned, workers: Sequence[_Worker]) -> list[tuple[str, list[int]]]: ...
    def explain(self, format: str, workers: Sequence[_Worker], planned: _Planned, comm: Comm) -> str: ...

class GraphCheckpoints:
    def __init__(self, options: dict[str, Any], engine: QueryEngine) -> None: ...
    def note(self, engine: QueryEngine, name: str) -> bytes | None: ...
    def put_note(self, engine: QueryEngine, name: str, bytes: bytes) -> None: ...
    def note_names(self, engine: QueryEngine, within: str) -> list[str]: ...
    def remove_notes(self, engine: QueryEngine, names: Sequence[str]) -> None: ...

class GraphRunner:
    def __init__(self, comm: Comm, engine: QueryEngine) -> None: ...
    @property
    def workers(self) -> list[_Worker]: ...
    def run(
        self,
        graph: NativeGraph,
        planned: _Planned,
        checkpoints: GraphCheckpoints | None = None,
    ) -> tuple[dict[str, dict[int, Any]], dict[str, Any]]: ...

def object_table(pickled: Sequence[Any]) -> NativeTable: ...
def array_table(arrays: Sequence[tuple[Any, str, Sequence[int]]]) -> NativeTable: ...
def payloads(table: NativeTable) -> tuple[str, list[Any]]: ...
def message_schema(name: str) -> NativeTable | None: ...
def stream_of(
    engine: QueryEngine,
    spec: str,
    schema: object | None,
    time: tuple[str, int, int, str, str | None] | None,
    bad_to: tuple[object, str] | None = None,
) -> NativeDataSet: ...
def stream_of_table(
    engine: QueryEngine,
    table: NativeTable,
    name: str,
    time: tuple[str, int, int, str, str | None] | None,
    slice_rows: int,
    rows_per_s: float,
) -> NativeDataSet: ...
def stream_of_function(
    engine: QueryEngine,
    name: str,
    factory: Callable[[str, bytes | None], object],
    splits: Sequence[str],
    schema: object,
    time: tuple[str, int, int, str, str | None] | None,
    poll_every: float,
    guarantee: str,
    acknowledge: Callable[[list[tuple[str, bytes]]], None] | None,
) -> NativeDataSet: ...
def window_of(
    time: NativeExpr,
    kind: str,
    size: int,
    slide: int,
    lateness: int,
    early: int | None = None,
    early_time: int | None = None,
    early_rows: int | None = None,
    zone: str = "",
    ttl: int | None = None,
) -> NativeExpr: ...

class NativeRedisHashes:
    def __init__(self, spec: str) -> None: ...
    def get(self, rows: NativeTable, on: Sequence[str]) -> list[list[str | None] | None]: ...

class NativeRunning:
    def owners(self) -> dict[str, list[int]]: ...
    def rebalance(self, owners: Mapping[str, Sequence[int]]) -> int: ...
    def outcomes(self) -> list[tuple[list[str], str | None, dict[str, Any] | None]]: ...

class NativeStreamJob:
    def __init__(
        self,
        engine: QueryEngine,
        outputs: Sequence[tuple[NativeDataSet, object, str]],
        name: str,
        checkpoints: dict[str, Any] | None = None,
        guarantee: str | None = None,
        late: Sequence[tuple[str | None, object, str]] | None = None,
        look_at_sinks: Callable[[list[tuple[str, list[str]]]], object] | None = None,
    ) -> None: ...
    def run(
        self,
        engine: QueryEngine,
        comm: Comm,
        stop: Callable[[], bool] | None = None,
        status: tuple[str | None, str] | None = None,
        watch: Callable[[NativeRunning], object] | None = None,
        log: Callable[[list[str], tuple[int, float, int] | None, list[str]], object] | None = None,
        controller: dict[str, Any] | None = None,
    ) -> tuple[dict[str, Any], int, str | None, list[tuple[str, int, int, int]]]: ...

def explain_stream(
    engine: QueryEngine, comm: Comm, outputs: Sequence[tuple[NativeDataSet, object | None, str]]
) -> str: ...
def controller_record(engine: QueryEngine, place: str, storage_options: dict[str, str]) -> str: ...
def list_checkpoints(
    engine: QueryEngine, place: str, storage_options: dict[str, str], verify: bool
) -> list[tuple[int, tuple[str, int, bool, int, list[tuple[str, int, tuple[int, str] | None]]] | None, str | None]]: ...
def join_files(parquet: bool, parts: list[str], out: str, codec: str) -> None: ...
def copy_checkpoint(
    engine: QueryEngine, place: str, to: str, storage_options: dict[str, str], epoch: int | None
) -> tuple[int, int]: ...

"""Networks on several workers: the same result for any number of them, any partition and any synchronization."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tidemill as tm
from numpy.typing import NDArray
from standing import run

METHODS = ("greedy", "blocks", "hash")


def links(seed: int, n: int, directed: bool) -> tuple[Any, Any, Any]:
    """Links between near nodes, some far ones, and nodes that nothing leads to or from."""
    rng = np.random.default_rng(seed)
    sources = rng.integers(0, n, 4 * n)
    steps = np.where(rng.random(4 * n) < 0.9, rng.integers(1, 5, 4 * n), rng.integers(1, n, 4 * n))
    kept = sources % 11 != 0
    return sources[kept], ((sources + steps) % n)[kept], rng.integers(1, 9, int(kept.sum())) / 4


def computed(ends: tuple[Any, Any, Any], n: int, directed: bool, options: dict[str, Any]) -> dict[str, Any]:
    """On a worker: everything that can synchronize partially."""
    net = tm.networks.read(ends, directed=directed, nodes=n)
    scores = tm.networks.pagerank(net, tol=1e-13, max_iter=2000, **options)
    more = {name: value for name, value in options.items() if name != "local_sweeps"}
    paths = tm.networks.shortest_paths(net, [3, 1], **options)
    components = tm.networks.connected_components(net, **more)
    return {
        "scores": scores.values,
        "converged": scores.converged,
        "distances": paths.values,
        "parents": paths.parents,
        "components": components.values,
        "accounts": [scores.account, paths.account, components.account],
    }


def check_parents(net: tm.networks.Network, distances: NDArray[Any], parents: NDArray[Any]) -> None:
    """A parent's distance and the length of a link are the distance."""
    shortest: dict[tuple[int, int], float] = {}
    weights = net.weights
    assert weights is not None
    for source, target, weight in zip(net.sources.tolist(), net.targets.tolist(), weights.tolist(), strict=True):
        shortest[source, target] = min(weight, shortest.get((source, target), np.inf))
    for node, parent in enumerate(parents.tolist()):
        if parent < 0 or parent == node:
            assert distances[node] == (0 if parent == node else np.inf)
        else:
            assert distances[node] == distances[parent] + shortest[parent, node]


@pytest.mark.parametrize("directed", [False, True], ids=["undirected", "directed"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_every_synchronization_finds_the_same(workers: int, directed: bool) -> None:
    n = 300
    ends = links(workers, n, directed)
    net = tm.networks.read(ends, directed=directed, nodes=n)
    alone = tm.networks.pagerank(net, tol=1e-13, max_iter=2000)
    paths = tm.networks.shortest_paths(net, [3, 1])
    components = tm.networks.connected_components(net)
    one = computed(ends, n, directed, {"sync": "global"})
    cases: list[dict[str, Any]] = [{"sync": "global", "method": method} for method in METHODS]
    cases += [{"sync": "partial"}, {"sync": "partial", "local_sweeps": 2, "method": "hash"}, {"sync": "auto"}]
    cases += [{"sync": "async"}, {"sync": "async", "local_sweeps": 1, "method": "hash"}]
    for options in cases:
        for found in run(computed, ends, n, directed, options, workers=workers):
            assert found["converged"], options
            np.testing.assert_allclose(found["scores"], alone.values, atol=1e-12, err_msg=str(options))
            if options["sync"] == "global":
                assert (found["scores"] == one["scores"]).all(), f"{options}: not the same to the bit"
            assert (found["distances"] == paths.values).all(), options
            check_parents(net, found["distances"], found["parents"])
            assert (found["components"] == components.values).all(), options


def test_auto_is_partial_where_few_links_are_cut() -> None:
    """A ring in two halves has two links between them; dealt by a hash, half of its links are."""
    n = 400
    nodes = np.arange(n)
    ends = (nodes, (nodes + 1) % n, np.ones(n))
    for method, expected in (("blocks", "partial"), ("hash", "global")):
        for found in run(computed, ends, n, False, {"sync": "auto", "method": method}, workers=2):
            _, paths, components = found["accounts"]
            assert (paths.sync, components.sync) == (expected, expected), method


def test_partial_synchronization_needs_fewer_rounds() -> None:
    """A ring of 400 nodes in two parts: what one sweep a round takes hundreds of, a fixpoint takes a few."""
    n = 400
    nodes = np.arange(n)
    ends = (nodes, (nodes + 1) % n, np.ones(n))
    options: dict[str, Any] = {"method": "blocks"}
    every = run(computed, ends, n, False, {"sync": "global", **options}, workers=2)
    partial = run(computed, ends, n, False, {"sync": "partial", **options}, workers=2)
    for plain, fewer in zip(every, partial, strict=True):
        scores, paths, components = zip(plain["accounts"], fewer["accounts"], strict=True)
        assert scores[1].rounds <= scores[0].rounds
        assert paths[1].rounds * 20 < paths[0].rounds
        assert paths[1].gather_seconds > 0
        assert components[1].rounds <= components[0].rounds
        assert scores[1].cut_links == 2 and scores[1].ghosts == 2
        assert scores[1].bytes_sent == 16 * scores[1].rounds
        assert scores[1].local_sweeps == 4 and scores[1].sync == "partial"


def small(directed: bool, n: int) -> list[Any]:
    """On a worker: networks with fewer nodes than workers."""
    net = tm.networks.read(([0] if n > 1 else [], [n - 1] if n > 1 else []), directed=directed, nodes=n)
    scores = tm.networks.pagerank(net, sync="partial").values.tolist()
    count = tm.networks.connected_components(net, sync="global").count
    assert tm.networks.connected_components(net, sync="async").count == count
    np.testing.assert_allclose(tm.networks.pagerank(net, sync="async").values, scores, atol=1e-6)
    return [scores, count, tm.networks.shortest_paths(net, [0], sync="partial").values.tolist() if n else None]


@pytest.mark.parametrize("n", [0, 1, 2])
def test_workers_may_have_no_nodes(n: int) -> None:
    found = run(small, True, n, workers=3)
    assert found[0] == found[1] == found[2]
    assert found[0][1] == min(n, 1)


def bad(weight: float) -> str:
    """On a worker: what is wrong with a network is an error on all of them."""
    net = tm.networks.read(([0, 1], [1, 2], [1.0, weight]))
    try:
        tm.networks.shortest_paths(net, 0, sync="partial")
    except ValueError as error:
        return str(error)
    return ""


def test_errors_are_on_every_worker() -> None:
    assert all("from 1 to 2 has weight -1" in message for message in run(bad, -1.0, workers=2))


def different() -> str:
    """On a worker: networks that are not the same."""
    net = tm.networks.read(([0, 1], [1, tm.init().rank]))
    try:
        tm.networks.pagerank(net, sync="global")
    except ValueError as error:
        return str(error)
    return ""


def test_workers_have_the_same_network() -> None:
    """Otherwise some would wait for values that nobody sends."""
    assert all("different networks" in message for message in run(different, workers=2))


def sizes(net: tm.networks.Network) -> tuple[int, int, list[str]]:
    """On a worker."""
    return net.n, net.m, net.ids.tolist()


def test_networks_go_to_workers() -> None:
    net = tm.networks.read((["a", "b"], ["b", "c"], [1.0, 2.0]), directed=False)
    assert run(sizes, net, workers=2) == [(3, 2, ["a", "b", "c"])] * 2


def test_partitions() -> None:
    n = 1000
    nodes = np.arange(n)
    ring = tm.networks.read((nodes, (nodes + 1) % n), directed=False)
    for method in METHODS:
        found = tm.networks.partition(ring, 4, method=method)
        assert found.parts.shape == (n,) and set(found.parts.tolist()) == {0, 1, 2, 3}
        assert found.balance < 1.2
        ends = found.parts[ring.sources] != found.parts[ring.targets]
        assert found.cut_links == ends.sum() // 2
    assert tm.networks.partition(ring, 4, method="blocks").cut_links == 4
    assert tm.networks.partition(ring, 4).cut_links < 40
    assert tm.networks.partition(ring, 4) is tm.networks.partition(ring, 4)
    given = tm.networks.partition(ring, 2, method=nodes % 2)
    assert given.cut_links == n
    with pytest.raises(ValueError, match="from 0 to 1"):
        tm.networks.partition(ring, 2, method=nodes)
    with pytest.raises(ValueError, match="method is"):
        tm.networks.partition(ring, 2, method="best")  # type: ignore[arg-type]


def read_together(path: str, options: dict[str, Any]) -> Any:
    try:
        net = tm.networks.read(path, together=True, **options).gather()
    except ValueError as error:
        return str(error)
    return (
        net.ids.tolist(),
        net.offsets.tolist(),
        net.targets.tolist(),
        None if net.weights is None else net.weights.tolist(),
    )


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_file_that_is_read_together(tmp_path: Path, workers: int) -> None:
    """Each line is parsed once, wherever the shares meet; a bad one is told by its line in the file."""
    path = tmp_path / "links.txt"
    lines = ["# comment", "1 2 0.5", "", "9000000000 4 1.5", "22 333 2.5"]
    lines += [f"{n} {n * n} {n / 4}" for n in range(40)]
    for text in ("\n".join(lines), "\n".join(lines) + "\n", "7 8 1\n", "1 2 3"):
        path.write_text(text)
        net = tm.networks.read(path)
        weights = net.weights
        assert weights is not None
        alone = (net.ids.tolist(), net.offsets.tolist(), net.targets.tolist(), weights.tolist())
        assert run(read_together, str(path), {}, workers=workers) == [alone] * workers
    plain = tm.networks.read(path, weights=False)
    found = run(read_together, str(path), {"weights": False}, workers=workers)
    assert found == [(plain.ids.tolist(), plain.offsets.tolist(), plain.targets.tolist(), None)] * workers
    for bad in (3, 20, len(lines) - 1):
        path.write_text("\n".join([*lines[:bad], "1 x", *lines[bad + 1 :], "2 y"]))
        for message in run(read_together, str(path), {}, workers=workers):
            assert f"line {bad + 1}:" in message and str(path) in message


def test_parts_by_coordinates() -> None:
    """Rectangles of equal size, which cut as few links of a grid as their sides are long, in any order of its nodes."""
    side = 12
    order = np.random.default_rng(0).permutation(side * side)
    at = np.arange(side * side)
    east, south = at[at % side < side - 1], at[: -side or None]
    ends = np.concatenate([east, south]), np.concatenate([east + 1, south + side])
    where = np.empty((side * side, 2))
    where[order] = np.column_stack([at % side, at // side])
    grid = tm.networks.read((order[ends[0]], order[ends[1]]), directed=False, coordinates=where)
    for count, cut in ((1, 0), (2, side), (3, 2 * side), (4, 2 * side), (6, 3 * side)):
        found = tm.networks.partition(grid, count, method="coordinates")
        assert found.balance == 1 and found.cut_links <= cut, count
        assert np.bincount(found.parts).tolist() == [side * side // count] * count
    with pytest.raises(ValueError, match="no coordinates: read it with"):
        tm.networks.partition(tm.networks.read(([0], [1])), 2, method="coordinates")
    where[5] = np.nan
    with pytest.raises(ValueError, match="node 5 has no coordinates"):
        tm.networks.partition(tm.networks.read(([0, 5], [1, 9]), nodes=144, coordinates=where), 2, method="coordinates")


class OfTwoHosts:
    """A communicator of another library, whose first half of the ranks is on one host, and the others on another one."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.parts: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def Split_type(self, kind: int) -> Any:
        raise AssertionError(f"another library does not know Tidemill's number {kind}")

    def allgather(self, value: Any) -> list[Any]:
        every = self._comm.allgather(value)
        if isinstance(value, str) and value == socket.gethostname():
            return [f"host {rank * 2 // self.size}" for rank in range(self.size)]
        return list(every)

    def Split(self, color: int, key: int) -> Any:
        self.parts.append(self._comm.Split(color, key))
        return self.parts[-1]


def on_two_hosts(ends: tuple[Any, Any, Any], n: int, method: str, host_rounds: int) -> tuple[Any, Any]:
    """On a worker: scores, and the account."""
    net = tm.networks.read(ends, directed=False, nodes=n)
    with tm.ml.using(OfTwoHosts(tm.init().comm)):  # type: ignore[arg-type]
        found = tm.networks.pagerank(
            net,
            tol=1e-13,
            max_iter=2000,
            sync="partial",
            method=method,
            host_rounds=host_rounds,  # type: ignore[arg-type]
        )
    return found.values, found.account


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_hosts_exchange_among_themselves(workers: int) -> None:
    """The scores are the same, and hosts that exchange within save exchanges of all."""
    n = 400
    ends = links(7, n, False)
    alone = tm.networks.pagerank(tm.networks.read(ends, directed=False, nodes=n), tol=1e-13, max_iter=2000)
    for method in ("greedy", "blocks", "hash"):
        plain = run(on_two_hosts, ends, n, method, 1, workers=workers)
        more = run(on_two_hosts, ends, n, method, 3, workers=workers)
        for (_, account), (values, found) in zip(plain, more, strict=True):
            np.testing.assert_allclose(values, alone.values, atol=1e-12, err_msg=method)
            assert account.host_rounds == 0 and account.host_bytes_sent == 0
            # The first round has no sweeps, and the others two exchanges within hosts.
            assert found.host_rounds == (2 * (found.rounds - 1) if workers > 1 else 0)
            assert found.rounds <= account.rounds + 1, method
            if workers == 4:
                assert found.rounds < account.rounds, method
                assert found.host_bytes_sent > 0


def test_parts_with_many_links_are_on_one_host() -> None:
    """Of four cliques, each two far ones are linked: their workers are on one host, whatever order the parts have."""
    from tidemill.networks._partition import by_host

    clique = np.array([(one, other) for one in range(20) for other in range(one)])
    ends = np.concatenate([clique + 20 * at for at in range(4)])
    across = [(at, at + 40) for at in range(40)] + [(0, 20), (41, 61)]
    net = tm.networks.read(np.concatenate([ends, across]), directed=False)
    divided = tm.networks.partition(net, 4)
    assert divided.cut_links == 42
    found = by_host(net, divided, [(0, 1), (2, 3)])
    hosts = found.parts // 2
    assert (hosts[:40] == hosts[40:]).all() and hosts[0] != hosts[20]
    assert sorted(np.bincount(found.parts)) == [20] * 4
    given = tm.networks.partition(net, 4, method=divided.parts)
    assert by_host(net, given, [(0, 1), (2, 3)]) is given


def failing_on_two_hosts() -> bool:
    """On a worker: whether the communicator of its host is freed after an error."""
    comm = OfTwoHosts(tm.init().comm)
    with tm.ml.using(comm), pytest.raises(ValueError, match="method"):  # type: ignore[arg-type]
        tm.networks.pagerank(tm.networks.read(([0], [1])), sync="partial", host_rounds=2, method="x")  # type: ignore[arg-type]
    return len(comm.parts) == 1 and not comm.parts[0]


def test_host_communicators_are_freed() -> None:
    assert run(failing_on_two_hosts, workers=2) == [True, True]


def test_host_rounds_that_do_not_fit() -> None:
    net = tm.networks.read(([0], [1]))
    for options in ({"host_rounds": 2}, {"host_rounds": 0, "sync": "partial"}, {"host_rounds": 2, "sync": "global"}):
        with pytest.raises(ValueError, match="host_rounds is a positive number, with sync='partial'"):
            tm.networks.pagerank(net, **options)  # type: ignore[arg-type]

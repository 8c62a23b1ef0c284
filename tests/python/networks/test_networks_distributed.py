"""Distributed networks: each worker holds a share, and results are those of the whole network, to the bit."""

from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import tidemill as tm
from standing import run
from tidemill.ml._job import active
from tidemill.networks import _memory, _shares
from tidemill.networks._exchange import rounded_sum


def links(seed: int, n: int) -> tuple[Any, Any, Any]:
    """Links between near nodes and some far ones, with loops, parallels, and nodes that nothing leads to or from."""
    rng = np.random.default_rng(seed)
    sources = rng.integers(0, n, 4 * n)
    steps = np.where(rng.random(4 * n) < 0.9, rng.integers(0, 5, 4 * n), rng.integers(1, n, 4 * n))
    kept = sources % 11 != 0
    return sources[kept], ((sources + steps) % n)[kept], rng.integers(1, 9, int(kept.sum())) / 4


def whole_results(net: Any, source: Any, sync: Any) -> dict[str, Any]:
    """What a network has in all, on one worker or on all."""
    whole = net.gather()
    ids = whole.ids
    communities = tm.networks.label_propagation(net, max_iter=7).gather()
    return {
        "communities": communities.values.tolist(),
        "labels": [] if communities.labels is None else communities.labels.tolist(),
        "community sizes": (communities.count, communities.sizes.tolist(), communities.iterations),
        "modularity": pytest.approx(communities.modularity, abs=1e-12),
        "rows": (
            whole.offsets.tolist(),
            whole.targets.tolist(),
            None if whole.weights is None else whole.weights.tolist(),
        ),
        "ids": ids.tolist(),
        "sizes": (net.n, net.m),
        "scores": tm.networks.pagerank(net, tol=1e-10, max_iter=500, sync=sync).gather().values.tolist(),
        "components": tm.networks.connected_components(net).gather().values.tolist(),
        "component sizes": tm.networks.connected_components(net).gather().sizes.tolist(),
        "distances": tm.networks.shortest_paths(net, [source]).gather().values.tolist(),
        "levels": tm.networks.bfs(net, source).gather().values.tolist(),
        "cores": tm.networks.core_numbers(net).gather().values.tolist(),
        "strong components": strong_components(net),
        "betweenness": tm.networks.betweenness(net, samples=min(net.n, 30), seed=5).gather().values,
        "ends of paths": tm.networks.betweenness(net, samples=[source, *ids[[-1, 0]].tolist()], endpoints=True)
        .gather()
        .values,
        **clustering(net, "clustering by links", rule="links"),
        **clustering(net, "weighted clustering", weighted=True),
        **({} if net.directed else undirected_results(net)),
    }


def assert_same(found: dict[str, Any], expected: dict[str, Any], where: Any = None) -> None:
    """Arrays, of sums of fractions, may differ in the last bits; anything else may not."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_allclose(found[name], value, rtol=1e-11, atol=1e-13, err_msg=f"{where} {name}")
        else:
            assert found[name] == value, (where, name)


def strong_components(net: Any) -> Any:
    found = tm.networks.strong_components(net)
    whole = found.gather()
    return found.count, whole.values.tolist(), whole.sizes.tolist()


def clustering(net: Any, name: str, **options: Any) -> dict[str, Any]:
    found = tm.networks.clustering(net, **options)
    values, average = found.gather().values, found.average
    if options.get("weighted") and net.weighted:
        return {name: values, f"{name}: average": np.array(average), f"{name}: transitivity": found.transitivity}
    return {name: values.tolist(), f"{name}: average": average, f"{name}: transitivity": found.transitivity}


def gathered_links(net: Any, links: list[Any]) -> list[Any]:
    every = net.comm.allgather(links) if hasattr(net, "comm") else [links]
    # A partition leaves them at any worker.
    return sorted(link for some in every for link in some)


def undirected_results(net: Any) -> dict[str, Any]:
    forests = [tm.networks.minimum_spanning_forest(net, maximum=maximum) for maximum in (False, True)]
    return {
        "triangles": tm.networks.triangles(net).gather().values.tolist(),
        **clustering(net, "clustering"),
        "forests": [gathered_links(net, forest.links()) for forest in forests],
        "weights of forests": [forest.total for forest in forests],
    }


def shared(ends: tuple[Any, ...], source: Any, options: dict[str, Any]) -> dict[str, Any]:
    """On a worker: pass a share of the links, and compute."""
    job = tm.init()
    m = len(ends[0])
    share = slice(m * job.rank // job.size, m * (job.rank + 1) // job.size)
    # Partitions that are given, and coordinates, are of any share of the nodes, too.
    own = {
        name: tuple(column[job.rank :: job.size] for column in given)
        for name, given in options.items()
        if isinstance(given, tuple)
    }
    options = {**options, **own}
    if isinstance(options.get("partition"), tuple):
        options["partition"] = (options["partition"][0], options["partition"][1] % job.size)
    net = tm.networks.read(tuple(side[share] for side in ends), together=True, **options)
    assert len(net.ids) == net.own == len(net.offsets) - 1
    assert len(net.sources) == len(net.targets) == net.offsets[-1]
    # So that there are several pieces, and not as many on each worker.
    usual = _shares.PIECE_LINKS, _shares.SOURCES
    _shares.PIECE_LINKS, _shares.SOURCES = 16, 20
    try:
        return whole_results(net, source, None)
    finally:
        _shares.PIECE_LINKS, _shares.SOURCES = usual


@pytest.mark.parametrize("directed", [False, True], ids=["undirected", "directed"])
@pytest.mark.parametrize("duplicates", ["first", "sum", "max", "keep"])
def test_results_are_those_of_the_whole_network(directed: bool, duplicates: Any) -> None:
    """A link at a wrong owner, in another order, or with a wrong ghost changes some of them."""
    ends = links(3, 200)
    for kept in (3, 2):
        options = {"directed": directed, "duplicates": duplicates, "nodes": 205}
        expected = whole_results(tm.networks.read(ends[:kept], **options), 3, "global")
        for workers in (1, 2, 3):
            for found in run(shared, ends[:kept], 3, options, workers=workers):
                assert_same(found, expected, (workers, kept))


@pytest.mark.parametrize("directed", [False, True], ids=["undirected", "directed"])
@pytest.mark.parametrize("partition", ["hash", "coordinates", "greedy", "given", "one", "text"])
def test_results_do_not_depend_on_the_partition(directed: bool, partition: str) -> None:
    """A link at a wrong owner, in another order, a wrong ghost, or a number taken for a place, changes some of them."""
    sources, targets, weights = links(4, 150)
    nodes: Any = np.arange(150)
    options: dict[str, Any] = {"directed": directed, "duplicates": "sum", "nodes": 150}
    if partition == "text":
        names = np.array([f"n{at}" for at in range(150)])
        sources, targets, nodes = names[sources], names[targets], names
        options["nodes"] = names
    ends = sources, targets, weights
    source = nodes[3].item()
    expected = whole_results(tm.networks.read(ends, **options), source, "global")
    rng = np.random.default_rng(8)
    order = rng.permutation(150)
    if partition in ("given", "text"):
        options["partition"] = nodes[order], rng.integers(0, 100, 150)
    elif partition == "one":
        # All are one worker's, and others have none.
        options["partition"] = nodes[order], np.zeros(150, int)
    else:
        options["partition"] = partition
    if partition == "coordinates":
        # Some are equal, and some negative.
        options["coordinates"] = nodes[order], rng.integers(-3, 4, 150) / 2, rng.integers(-9, 4, 150) / 2
    for workers in (1, 3) if directed else (2, 4):
        for found in run(shared, ends, source, options, workers=workers):
            assert_same(found, expected, workers)


@pytest.mark.parametrize("ids", ["sparse", "large", "text"])
def test_ids_are_mapped(ids: str) -> None:
    """Ids that are not the numbers of nodes, of any type that can be sorted."""
    sources, targets, _ = links(5, 60)
    if ids == "sparse":
        names = np.arange(60) ** 5 - 10**6
    elif ids == "large":
        names = np.arange(60, dtype=np.uint64) * np.uint64(2**58) + np.uint64(7)
        assert int(names.max()) > 2**63
    else:
        names = np.array([f"n{at * at:05d}" if at % 2 else f"node {at:03d}" for at in range(60)])
    ends = names[sources], names[targets]
    source = names[3].item()
    net = tm.networks.read(ends, directed=False)
    expected = whole_results(net, source, "global")
    for workers in (1, 3):
        for found in run(shared, ends, source, {"directed": False}, workers=workers):
            assert_same(found, expected, workers)


def synchronized(ends: tuple[Any, ...], options: dict[str, Any], partition: Any) -> tuple[Any, Any]:
    job = tm.init()
    m = len(ends[0])
    share = slice(m * job.rank // job.size, m * (job.rank + 1) // job.size)
    net = tm.networks.read(tuple(side[share] for side in ends), directed=False, together=True, partition=partition)
    paths = tm.networks.shortest_paths(net, [3], **options)
    components = tm.networks.connected_components(net, **options)
    if options["sync"] == "partial":
        options = {**options, "host_rounds": 2}
    scores = tm.networks.pagerank(net, tol=1e-13, max_iter=2000, personalization={3: 1, 7: 2}, **options)
    return scores.gather().values, (paths.gather().values.tolist(), components.gather().values.tolist())


@pytest.mark.parametrize("partition", ["blocks", "hash", "greedy"])
@pytest.mark.parametrize("sync", ["global", "partial", "auto", "async"])
def test_all_kinds_of_synchronization(sync: str, partition: str) -> None:
    ends = links(7, 150)
    net = tm.networks.read(ends, directed=False)
    alone = tm.networks.pagerank(net, tol=1e-13, max_iter=2000, personalization={3: 1, 7: 2})
    lengths = tm.networks.shortest_paths(net, [3]).values.tolist()
    components = tm.networks.connected_components(net).values.tolist()
    for scores, others in run(synchronized, ends, {"sync": sync}, partition, workers=3):
        # The changes of all scores add up to n * tol; what is left to change is about six times that.
        np.testing.assert_allclose(scores, alone.values, atol=1e-10)
        assert others == (lengths, components)


def held(scale: int) -> dict[str, Any]:
    net = tm.networks.kronecker(scale, together=True)
    before = net.nbytes
    scores = tm.networks.pagerank(net, tol=1e-4)
    account = scores.account
    assert account is not None
    return {
        "network": before,
        "pagerank": account.held_bytes,
        "links": len(net.targets),
        "largest": len(scores.values),
        "top": scores.top(5),
        "m": net.m,
    }


def test_each_worker_holds_a_share() -> None:
    """The links of each worker, and the bytes that it holds, fall with the number of workers; only ghosts come on top."""
    scale = 15
    whole = tm.networks.kronecker(scale)
    scores = tm.networks.pagerank(whole, tol=1e-4, sync="global")
    (alone,) = run(held, scale, workers=1)
    # The links, once by their source, and for PageRank once more by their target.
    assert alone["network"] == pytest.approx(whole.m * 4 + whole.n * 8, rel=0.01)
    for workers in (2, 4):
        every = run(held, scale, workers=workers)
        assert sum(one["links"] for one in every) == whole.m
        for one in every:
            assert one["m"] == whole.m and one["top"] == scores.top(5)
            assert one["largest"] == whole.n // workers
            # At most a ghost of 4 bytes for each node of the others, and on the boundary 20 more.
            assert one["network"] < 1.1 * alone["network"] / workers + 4 * whole.n
            assert one["pagerank"] < 1.1 * alone["pagerank"] / workers + 40 * whole.n


def generated(kind: str, options: dict[str, Any]) -> Any:
    net = tm.networks.kronecker(9, together=True, **options)
    if kind == "uniform":
        net = tm.networks.uniform(500, 2_100_000, together=True, **options)
    whole = net.gather()
    return whole.offsets.tolist(), whole.targets.tolist()


def test_generated_links_are_the_same_on_any_number_of_workers() -> None:
    for options in ({}, {"directed": False}, {"seed": 5, "self_loops": "keep"}):
        net = tm.networks.kronecker(9, **options)  # type: ignore[arg-type]
        for workers in (1, 3):
            for found in run(generated, "kronecker", options, workers=workers):
                assert found == (net.offsets.tolist(), net.targets.tolist())
    # More than two blocks of links, most of them duplicates.
    net = tm.networks.uniform(500, 2_100_000)
    assert net.m > 0.99 * 500 * 499
    for found in run(generated, "uniform", {}, workers=3):
        assert found == (net.offsets.tolist(), net.targets.tolist())


def test_kronecker_networks_have_hubs_and_uniform_ones_do_not() -> None:
    kronecker, uniform = tm.networks.kronecker(12), tm.networks.uniform(4096, 65536)
    assert np.diff(kronecker.offsets).max() > 50 * kronecker.m / kronecker.n
    assert np.diff(uniform.offsets).max() < 4 * uniform.m / uniform.n
    assert kronecker.n == uniform.n == 4096
    # The scrambled numbers of nodes say nothing of their degrees: halves have about the same.
    half = int(kronecker.offsets[2048]) / kronecker.m
    assert 0.3 < half < 0.7
    for wrong in ({"scale": 32}, {"scale": -1}, {"scale": 3, "seed": -1}, {"scale": 3, "quadrants": (0.6, 0.6, 0.1)}):
        with pytest.raises(ValueError):
            tm.networks.kronecker(**wrong)  # type: ignore[arg-type]


def other_files(folder: str) -> list[Any]:
    found = []
    for name in ("links.txt.gz", "links.csv", "links.gr", "names.txt"):
        net = tm.networks.read(f"{folder}/{name}", together=True)
        found.append((net.own < net.n, whole_results(net, net.gather().ids.tolist()[0], None)))
    data = tm.from_dict({"a": ["x", "y", "z", "x"], "b": ["y", "z", "x", "z"]})
    found.append((True, whole_results(tm.networks.read(data, together=True), "x", None)))
    return found


def test_files_of_all_kinds(tmp_path: Path) -> None:
    sources, targets, weights = links(2, 40)
    rows = [f"{a} {b} {c}" for a, b, c in zip(sources, targets, weights, strict=True)]
    with gzip.open(tmp_path / "links.txt.gz", "wt") as file:
        file.write("\n".join(rows))
    (tmp_path / "links.csv").write_text("from,to,weight\n" + "\n".join(row.replace(" ", ",") for row in rows) + "\n")
    arcs = [f"a {a + 1} {b + 1} {c}" for a, b, c in zip(sources, targets, weights, strict=True)]
    (tmp_path / "links.gr").write_text("\n".join([f"p sp 41 {len(arcs)}", *arcs]))
    (tmp_path / "names.txt").write_text(
        "\n".join(f"{chr(97 + a % 26)}{a} {chr(97 + b % 26)}{b}" for a, b, *_ in zip(sources, targets, strict=True))
    )
    expected = []
    for name in ("links.txt.gz", "links.csv", "links.gr", "names.txt"):
        net = tm.networks.read(tmp_path / name)
        expected.append(whole_results(net, net.ids.tolist()[0], "global"))
    for found in run(other_files, str(tmp_path), workers=2):
        for (_, one), wanted in zip(found[:4], expected, strict=True):
            assert_same(one, wanted)
        assert all(is_share for is_share, _ in found)
        assert found[4][1]["ids"] == ["x", "y", "z"]


def failing(case: str) -> str:
    """On a worker: what is wrong on one worker is an error on all."""
    rank = tm.init().rank
    options: dict[str, Any] = {"together": True}
    ends: list[Any] = [np.array([0, 1, 2]), np.array([1, 2, 0])]
    if case == "nan" and rank == 1:
        ends.append(np.array([1, np.nan, 1]))
    elif case == "nan":
        ends.append(np.ones(3))
    elif case == "types" and rank == 1:
        ends = [["a"], ["b"]]
    elif case == "floats" and rank == 1:
        ends = [np.array([0.5]), np.array([1.5])]
    elif case == "lengths" and rank == 1:
        ends[1] = ends[1][:2]
    elif case == "loops":
        ends[1][rank] = ends[0][rank]
        options["self_loops"] = "raise"
    elif case == "negative":
        ends = [[0, 1], [1, 2], [1.0, -1.0 if rank == 1 else 1.0]]
        options["duplicates"] = "keep"
    elif case in ("weights", "rule"):
        ends = [[0, 1], [1, 2], [0.0, 0.0]]
    elif case == "coordinates":
        options["coordinates"] = np.zeros((3, 2))
    try:
        net = tm.networks.read(tuple(ends), **options)
        if case == "node":
            tm.networks.bfs(net, 77)
        elif case == "method":
            tm.networks.pagerank(net, method="hash")
        elif case == "start":
            tm.networks.pagerank(net, start=np.full(net.own, -1.0 if rank == 1 else 1.0))
        elif case == "path":
            tm.networks.bfs(net, 0).path_to(0)
        elif case == "negative":
            tm.networks.shortest_paths(net, 0)
        elif case == "weights":
            tm.networks.clustering(net, weighted=True)
        elif case == "rule":
            tm.networks.clustering(net, weighted=True, rule="links")
        elif case == "samples":
            tm.networks.betweenness(net, samples=9)
        elif case == "sample":
            tm.networks.betweenness(net, samples=[0, 77])
    except (ValueError, KeyError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("nan", "on rank 1, link 1 from 1 to 2 has weight NaN"),
        ("types", "some ids are integers and others text"),
        ("floats", "on rank 1, ids are of type float64"),
        ("lengths", "on rank 1, sources and targets"),
        ("loops", "on rank 0, link 0 leads from 0 to itself"),
        ("negative", "from 1 to 2 has weight -1"),
        ("coordinates", "no coordinates"),
        ("node", "no node 77"),
        ("method", "dealt when it was read"),
        ("start", "start is numbers that are finite, not negative"),
        ("path", "call gather"),
        ("weights", "all weights are 0"),
        ("rule", "rule='links' counts links"),
        ("samples", "from 1 to 3"),
        ("sample", "no node 77"),
    ],
)
def test_errors_are_on_every_worker(case: str, words: str) -> None:
    assert [words in message for message in run(failing, case, workers=2)] == [True, True]


def named_in_any_order() -> Any:
    """On a worker: the same nodes, in its own order."""
    turn = 1 if tm.init().rank else -1
    net = tm.networks.read((["a", "b", "c", "d"], ["b", "c", "d", "a"]), together=True)
    paths = tm.networks.shortest_paths(net, ["a", "c"][::turn])
    wished = dict([("a", 1.0), ("d", 3.0)][::turn])
    scores = tm.networks.pagerank(net, personalization=wished, dangling=wished)
    with pytest.raises(ValueError, match="different nodes"):
        tm.networks.shortest_paths(net, ["a"] if turn < 0 else ["b"])
    with pytest.raises(TypeError, match="not a DistributedNetwork"):
        tm.networks.partition(net, 2)  # type: ignore[arg-type]
    return paths.gather().to_dict(), scores.gather().to_dict()


def test_workers_name_nodes_in_any_order() -> None:
    """A set of strings has another order in each process."""
    net = tm.networks.read((["a", "b", "c", "d"], ["b", "c", "d", "a"]))
    scores = tm.networks.pagerank(net, personalization={"a": 1, "d": 3}, sync="global").to_dict()
    assert run(named_in_any_order, workers=2) == [({"a": 0, "b": 1, "c": 0, "d": 1}, scores)] * 2


def refused(path: str) -> list[str]:
    found = []
    for work in (
        lambda: tm.networks.read(path, together=True),
        lambda: tm.networks.read(path, together=True),
        lambda: tm.networks.kronecker(20, together=True),
        lambda: tm.networks.uniform(10, 10, together=True).m,
    ):
        with pytest.MonkeyPatch.context() as patch:
            # Only one worker has too little.
            patch.setenv("TIDEMILL_MEMORY", "50MiB" if tm.init().rank == len(found) % 2 else "4GiB")
            try:
                found.append(str(work()))
            except tm.networks.NetworkTooLargeError as error:
                found.append(str(error))
    return found


def test_memory_is_stated_and_within_the_budget(tmp_path: Path) -> None:
    path = tmp_path / "links.txt"
    path.write_bytes(b"1000001 1000002\n" * 6_000_000)
    one, four = tm.networks.estimate(path, workers=1), tm.networks.estimate(path, workers=4)
    assert one.links == four.links and one.peak_bytes == pytest.approx(4 * four.peak_bytes, rel=0.01)
    for found in run(refused, str(path), workers=2):
        assert all("but this worker may take 50 MiB" in message for message in found[:3])
        assert "shared by 2 workers" in found[0] and "use more workers" in found[0]
        assert found[3] == "10" or int(found[3]) <= 10


def test_memory_of_a_compressed_file_is_within_the_budget(tmp_path: Path) -> None:
    """How much it has shows only while it is read, when the others wait for its lines, or the first worker sends them."""
    path = tmp_path / "links.txt.gz"
    path.write_bytes(gzip.compress(b"1000001 1000002\n" * 6_000_000, 1))
    for found in run(refused, str(path), workers=2):
        assert all("but this worker may take 50 MiB" in message for message in found[:2])
        assert all("shared by 2 workers" in message for message in found[:2])


def small(n: int) -> list[Any]:
    """On a worker: fewer nodes than workers."""
    rank = tm.init().rank
    ends = ([0], [n - 1]) if n > 1 and rank == 1 else ([], [])
    net = tm.networks.read(ends, nodes=n, together=True)
    assert tm.networks.core_numbers(net).values.shape == (net.own,)
    undirected = tm.networks.read(ends, nodes=n, directed=False, together=True)
    assert tm.networks.clustering(undirected).values.tolist() == [0.0] * undirected.own
    assert tm.networks.strong_components(net).values.shape == (net.own,)
    assert tm.networks.betweenness(net).values.tolist() == [0.0] * net.own
    assert tm.networks.minimum_spanning_forest(undirected).total == (1.0 if n == 2 else 0.0)
    return [
        tm.networks.pagerank(net).gather().values.tolist(),
        tm.networks.connected_components(net).count,
        tm.networks.shortest_paths(net, [0]).gather().values.tolist() if n else None,
    ]


@pytest.mark.parametrize("n", [0, 1, 2])
def test_workers_may_have_no_nodes(n: int) -> None:
    found = run(small, n, workers=3)
    assert found[0] == found[1] == found[2]
    assert found[0][1] == min(n, 1)


def used(path: str) -> Any:
    """On a worker: what you do with results without gathering them."""
    net = tm.networks.read(path, directed=False, together=True)
    components = tm.networks.connected_components(net)
    table = tm.from_local(components.to_table()).group_by("component").agg(tm.col("node").count().alias("nodes"))
    own = net.ids.tolist()
    assert list(components.to_dict()) == own
    assert all(components[node] == value for node, value in components.items())
    louvain = tm.networks.louvain(net)
    assert louvain.network is net.gather() and len(louvain) == net.n
    return components.count, sorted(row["nodes"] for row in table.collect().to_pylist()), int(components.sizes.sum())


def test_results_stay_where_nodes_are(tmp_path: Path) -> None:
    path = tmp_path / "links.txt"
    path.write_text("\n".join(f"{at} {at + 1}" for at in range(1, 40) if at % 8))
    found = run(used, str(path), workers=2)
    assert found[0][:2] == found[1][:2] == (5, [8, 8, 8, 8, 8])
    assert found[0][2] + found[1][2] == 40


def roads(folder: Path, side: int) -> tuple[str, str]:
    """Write a grid with a missing street here and there, whose ids say nothing of where a node is."""
    rng = np.random.default_rng(11)
    ids = rng.permutation(side * side).reshape(side, side) + 1
    pairs = [(ids[:, :-1], ids[:, 1:]), (ids[:-1], ids[1:])]
    ends = np.concatenate([np.stack([one.ravel(), other.ravel()], axis=1) for one, other in pairs])
    ends = ends[rng.random(len(ends)) < 0.9]
    arcs = [f"a {a} {b} {length}" for a, b in ends.tolist() for length in [1 + (a * b) % 7]]
    (folder / "roads.gr").write_text("\n".join([f"p sp {side * side} {len(arcs)}", *arcs, ""]))
    where = {node: place for place, node in np.ndenumerate(ids)}
    lines = [f"v {node} {where[node][1] * 10} {where[node][0] * 10}" for node in sorted(where)]
    (folder / "roads.co").write_text("\n".join([f"p aux sp co {side * side}", *lines, ""]))
    return str(folder / "roads.gr"), str(folder / "roads.co")


def partitioned_roads(files: tuple[str, str], partition: str) -> dict[str, Any]:
    where = files[1] if partition == "coordinates" else None
    net = tm.networks.read(files[0], directed=False, together=True, partition=partition, coordinates=where)
    found: dict[str, Any] = {"partition": net.partition, "nodes": net.nodes.tolist(), "ids": net.ids.tolist()}
    for sync in ("global", "partial"):
        scores = tm.networks.pagerank(net, rule="largest", tol=1e-5, normalized=False, sync=sync)
        paths = tm.networks.shortest_paths(net, [1], sync=sync)
        assert scores.account is not None and paths.account is not None
        found[sync] = {
            "rounds": scores.account.rounds,
            "bytes": scores.account.bytes_sent,
            "rounds of paths": paths.account.rounds,
            "bytes of paths": paths.account.bytes_sent,
        }
        found[f"values, {sync}"] = scores.gather().values, paths.gather().values.tolist()
    return found


def test_a_partition_of_roads_saves_rounds_and_bytes(tmp_path: Path) -> None:
    """The account of partial synchronization, by blocks of ids that say nothing, and by partitions that keep neighbors together."""
    files = roads(tmp_path, 40)
    whole = tm.networks.read(files[0], directed=False, coordinates=files[1])
    every = {
        name: run(partitioned_roads, files, name, workers=4) for name in ("blocks", "hash", "coordinates", "greedy")
    }
    first = every["blocks"][0]
    for name, workers in every.items():
        report = workers[0]["partition"]
        assert (report.method, report.count) == (name, 4) and report.seconds >= 0
        parts = np.empty(whole.n, np.int64)
        for rank, one in enumerate(workers):
            parts[one["nodes"]] = rank
            assert one["ids"] == whole.ids[one["nodes"]].tolist()
            assert one["partition"].cut_links == report.cut_links and one["partition"].balance == report.balance
            assert one["values, global"][0].tolist() == first["values, global"][0].tolist()
            assert one["values, partial"][1] == first["values, global"][1]
            np.testing.assert_allclose(one["values, partial"][0], first["values, global"][0], atol=2e-3)
        again = tm.networks.partition(whole, 4, method=parts)
        assert (again.cut_links, again.balance) == (report.cut_links, report.balance)
        if name in ("coordinates", "hash"):
            # As of the whole network.
            other = tm.networks.partition(whole, 4, method=name)  # type: ignore[arg-type]
            assert other.parts.tolist() == parts.tolist()

    def total(name: str, sync: str, what: str) -> int:
        return sum(one[sync][what] for one in every[name])

    cuts = {name: workers[0]["partition"].cut_links for name, workers in every.items()}
    assert cuts["coordinates"] < cuts["blocks"] / 20 and cuts["greedy"] < cuts["blocks"] / 2
    assert all(workers[0]["partition"].balance <= 1.051 for workers in every.values())
    for name in ("coordinates", "greedy"):
        for what in ("bytes", "bytes of paths", "rounds of paths"):
            assert total(name, "partial", what) < total("blocks", "partial", what), (name, what)
    assert total("coordinates", "partial", "rounds") < total("blocks", "partial", "rounds")
    # Fewer than half of the rounds of global synchronization, at a tenth of the bytes or less by blocks.
    assert total("coordinates", "partial", "rounds") < total("coordinates", "global", "rounds") / 2
    assert total("coordinates", "partial", "bytes") < total("blocks", "partial", "bytes") / 10


def badly_partitioned(case: str) -> str:
    """On a worker: what is wrong with a partition is an error on all."""
    rank = tm.init().rank
    options: dict[str, Any] = {"together": True}
    nodes = [0, 1] if rank else [2, 3]
    if case == "missing":
        options["partition"] = nodes[: 2 - rank], [0, 1][: 2 - rank]
    elif case == "worker":
        options["partition"] = nodes, [0, 2 * rank]
    elif case == "unknown":
        options["partition"] = [*nodes, 5 + rank], [0, 1, 1]
    elif case == "twice":
        options["partition"] = [*nodes, 0], [0, 1, rank]
    elif case == "types":
        options["partition"] = (["a"], [0]) if rank else (nodes, [0, 1])
    elif case == "length":
        options["partition"] = nodes, [0, 1, 1][rank:]
    elif case == "floats":
        options["partition"] = nodes, [0.0, 1.5]
    elif case == "name":
        options["partition"] = "best"
    elif case == "needs":
        options["partition"] = "coordinates"
    elif case == "nowhere":
        options.update(partition="coordinates", coordinates=(nodes, [0.0, 1.0], [1.0, np.nan if rank else 2.0]))
    elif case == "alone":
        options.update(together=False, partition="hash")
    elif case == "first":
        options["partition"] = "hash"
    try:
        net = tm.networks.read(([0, 1, 2, 3], [1, 2, 3, 0]), **options)
        return str(net.first)
    except (ValueError, TypeError) as error:
        return str(error)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("missing", "node 1 has no worker"),
        ("worker", "the worker of node 1 is not from 0 to 1"),
        ("unknown", "partition: the network has no node 5"),
        ("twice", "partition: there are different values for node 0"),
        ("types", "partition: ids are of type <U1, but those of the network of type int64"),
        ("length", "partition needs ids and workers: numbers, one for each id"),
        ("floats", "partition: workers are integers"),
        ("name", "partition is 'blocks', 'greedy', 'hash', 'coordinates', or ids and the worker of each, not 'best'"),
        ("needs", "partition='coordinates' needs them"),
        ("nowhere", "node 1 has no coordinates"),
        ("alone", "pass together=True, too"),
        ("first", "with partition='hash', own nodes are not a run of numbers"),
    ],
)
def test_errors_of_partitions_are_on_every_worker(case: str, words: str) -> None:
    for message in run(badly_partitioned, case, workers=2):
        assert words in message


def by_a_table(n: int) -> Any:
    """On a worker: the column of a DataSet says whose a node is; links are negative on one worker, and named by id."""
    job = tm.init()
    data = tm.from_dict({"node": [f"n{at}" for at in range(n)], "worker": [at % job.size for at in range(n)]})
    ends = [f"n{at}" for at in range(n)], [f"n{(at + 1) % n}" for at in range(n)]
    links = tm.from_dict({"from": ends[0], "to": ends[1], "weight": [1.0] * (n - 1) + [-1.0]})
    net = tm.networks.read(links, together=True, partition=data)
    with pytest.raises(ValueError, match=f"from 'n{n - 1}' to 'n0' has weight -1"):
        tm.networks.shortest_paths(net, ["n0"])
    components = tm.networks.connected_components(net)
    levels = tm.networks.bfs(net, "n0")
    ids = net.ids.tolist()
    assert all(levels[node] == int(node[1:]) for node in ids)
    assert levels.gather().path_to("n3") == ["n0", "n1", "n2", "n3"]
    return ids, components.count, components.gather().sizes.tolist(), tm.networks.pagerank(net, weighted=False).top(n)


def test_the_column_of_a_table_deals_nodes() -> None:
    found = run(by_a_table, 11, workers=3)
    for rank, (ids, *others) in enumerate(found):
        assert ids == sorted(f"n{at}" for at in range(rank, 11, 3))
        assert others[:2] == [1, [11]]
        # Scores of a ring are equal, and nodes then come in the order of ids.
        assert [node for node, _ in others[2]] == sorted(f"n{at}" for at in range(11))


def shapes(seed: int) -> dict[str, list[tuple[int, int]]]:
    """Directed links between up to 60 nodes, with what loses components if rounds end early or orders are wrong."""
    rng = np.random.default_rng(seed)
    return {
        "loops": [(3, 3), (3, 3), (7, 7)],
        "path": [(at, at + 1) for at in range(59)],
        "path back": [(at + 1, at) for at in range(59)],
        "ring over all workers": [(at, (at + 7) % 60) for at in range(60)],
        "chain of pairs": [(a, b) for at in range(0, 58, 2) for a, b in ((at, at + 1), (at + 1, at), (at + 1, at + 2))],
        "sparse": [(int(a), int(b)) for a, b in rng.integers(0, 60, (70, 2))],
        "dense": [(int(a), int(b)) for a, b in rng.integers(0, 60, (400, 2))],
        "star": [(0, at) for at in range(1, 60)] + [(at, 0) for at in range(5, 20)],
    }


def structure(ends: list[tuple[int, int]]) -> dict[str, Any]:
    """On a worker: what networkx computes, too, of links that are dealt by turns."""
    job = tm.init()
    some = np.array(ends, np.int64).reshape(-1, 2)[job.rank :: job.size].T
    net = tm.networks.read((some[0], some[1]), nodes=60, together=True)
    plain = tm.networks.read((some[0], some[1]), nodes=60, directed=False, together=True)
    usual, _shares.PIECE_LINKS = _shares.PIECE_LINKS, 5
    try:
        return {
            "strong": {min(members) for members in tm.networks.strong_components(net).gather().sets()},
            "sizes": sorted(tm.networks.strong_components(net).gather().sizes.tolist()),
            "triangles": tm.networks.triangles(plain).gather().to_dict(),
            "clustering": tm.networks.clustering(net).gather().to_dict(),
            "betweenness": tm.networks.betweenness(net, endpoints=True).gather().to_dict(),
            "undirected": tm.networks.betweenness(plain, normalized=False).gather().to_dict(),
        }
    finally:
        _shares.PIECE_LINKS = usual


@pytest.mark.parametrize("shape", shapes(1))
def test_structure_is_that_of_networkx(shape: str) -> None:
    ends = shapes(1)[shape]
    made = nx.DiGraph()
    made.add_nodes_from(range(60))
    made.add_edges_from(ends)
    without_loops = made.copy()
    without_loops.remove_edges_from(nx.selfloop_edges(made))
    plain = without_loops.to_undirected()
    strong = list(nx.strongly_connected_components(made))
    expected = {
        "strong": {min(members) for members in strong},
        "sizes": sorted(len(members) for members in strong),
        "triangles": nx.triangles(plain),
        "clustering": pytest.approx(nx.clustering(without_loops)),
        "betweenness": pytest.approx(nx.betweenness_centrality(without_loops, endpoints=True)),
        "undirected": pytest.approx(nx.betweenness_centrality(plain, normalized=False)),
    }
    for workers in (1, 2, 4):
        for found in run(structure, ends, workers=workers):
            assert found == expected, workers


def drawn(seed: int | None) -> Any:
    net = tm.networks.kronecker(6, seed=1, directed=True, together=True)
    return tm.networks.betweenness(net, samples=5, seed=seed).gather().values.tolist()


def test_samples_are_the_same_on_all_workers() -> None:
    """Without a seed, too; and with one, they are those of a whole network, and do not depend on the number of workers."""
    first, second = run(drawn, None, workers=2)
    assert first == second
    whole = tm.networks.betweenness(tm.networks.kronecker(6, seed=1, directed=True), samples=5, seed=3).values
    every = [found for workers in (1, 2, 3) for found in run(drawn, 3, workers=workers)]
    assert all(found == every[0] for found in every)
    np.testing.assert_allclose(every[0], whole, rtol=1e-11)


def summed(values: list[float]) -> float:
    job = tm.init()
    return rounded_sum(active(), np.array(values[job.rank :: job.size]))


@pytest.mark.parametrize(
    "values",
    [
        [],
        [0.1] * 10,
        [1e300, 1.0, -1e300, 2**-60, 5e-324],
        [1e16, 1.0, 1e-16, -1e16],
        [1.7e308, 1.7e308],
        [1.7e308, 1.7e308, -1.7e308],
        [1.0, float("inf"), 2.0],
    ],
)
def test_sums_are_rounded_once(values: list[float]) -> None:
    try:
        expected = math.fsum(values)
    except OverflowError:
        # Of partial sums; the whole may be finite.
        expected = 1.7e308 if len(values) == 3 else math.inf
    for workers in (1, 2, 3):
        assert run(summed, values, workers=workers) == [expected] * workers


def test_working_memory_follows_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_MEMORY", "64MiB")
    assert _memory.within_budget(64, 1 << 22) == (64 << 20) // 16 // 64
    assert _memory.within_budget(64, 100) == 100
    assert _memory.within_budget(1 << 40, 100) == 1
    monkeypatch.setenv("TIDEMILL_MEMORY", "none")
    assert _memory.within_budget(64, 1 << 22) == 1 << 22

"""The benchmark of networks: its tiny run, its graphs, and how results are compared and judged."""

from __future__ import annotations

import dataclasses
import gzip
import json
import subprocess
import sys
from pathlib import Path

import benched
import launched
import numpy as np
import pytest
from harness import graphs, networks, networks_programs, networks_sync

PEERS = benched.BENCH / ".peers" / "networks" / ".stamp"


@pytest.mark.slow
def test_tiny_run_computes_on_networks(tiny: Path) -> None:
    path = next(tiny.glob("tiny-*.json"))
    found = json.loads(path.read_text())["networks"]
    kernels, flow = found["cases"]
    assert {*kernels["kernel_s"], *flow["kernel_s"]} == set(networks.KERNELS) and set(flow["kernel_s"]) == {"flow"}
    for case in found["cases"]:
        assert case["failures"] == {} and case["different"] == []
        assert all(set(of) == {"tidemill-1", "tidemill-2"} for of in case["kernel_s"].values())
    assert "## Networks" in path.with_suffix(".md").read_text()
    if found["sync"]["missing"]:
        return
    assert found["sync"]["failures"] == {} and all(case["right"] for case in found["sync"]["cases"])
    rounds = {(case["algorithm"], case["sync"]): case["account"]["rounds"] for case in found["sync"]["cases"]}
    assert rounds["paths", "partial"] < rounds["paths", "global"]
    assert rounds["pagerank", "partial"] < rounds["pagerank", "global"]


@pytest.mark.slow
@pytest.mark.skipif(not PEERS.exists(), reason="peers are not installed: run bench/setup_peers.sh networks")
def test_tiny_run_beside_peers(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(benched.BENCH / "run.py"),
        "--tiny",
        "--only",
        "networks",
        "--cases",
        "kronecker,flow",
    ]
    command += ["--systems", ",".join(("tidemill", *networks.LIBRARIES)), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    kernels, flow = benched.results(tmp_path)["networks"]["cases"]
    assert all(case["failures"] == {} and case["different"] == [] for case in (kernels, flow))
    found = {*kernels["kernel_s"]["pagerank"], *flow["kernel_s"]["flow"]}
    assert found == {*networks.LIBRARIES, "tidemill-1", "tidemill-2"}


def test_workers_share_the_network_of_the_benchmark_of_memory(tmp_path: Path) -> None:
    """Drawn, or written to a file and read again, it has the same links and scores."""
    best = []
    for more in ([], ["--file", str(tmp_path / "links.txt")]):
        done = launched.run("run", "-n", "2", benched.BENCH / "networks_memory.py", "--scale", "10", *more)
        assert done.returncode == 0, (done.stdout + done.stderr).decode()
        row = [field.strip() for field in done.stdout.decode().splitlines()[-1].split("|")]
        best.append((row[3], row[-2]))
    assert best[0] == best[1] and int(best[0][0].replace(",", "")) > 5_000
    assert (tmp_path / "links.txt").stat().st_size > 30_000


@pytest.mark.parametrize(
    "made",
    [
        lambda: graphs.local("A", 2000, (1, 5, 5)),
        lambda: graphs.chung_lu("C", 2000, 20_000),
        lambda: graphs.kronecker("K", 9),
        lambda: graphs.grid("G", 10),
    ],
    ids=["local", "chung-lu", "kronecker", "grid"],
)
def test_graphs_are_seeded_and_clean(made) -> None:
    one, other = made(), made()
    assert np.array_equal(one.links, other.links) and np.array_equal(one.lengths, other.lengths)
    assert len(np.unique(one.links, axis=0)) == len(one.links) == len(one.lengths)
    assert (one.links[:, 0] != one.links[:, 1]).all()
    assert np.array_equal(np.unique(one.links), np.arange(one.nodes))
    pairs = {frozenset(pair) for pair in one.links.tolist()}
    assert {frozenset(pair) for pair in one.undirected().tolist()} == pairs


def test_first_of_equal_links_has_its_length() -> None:
    graph = graphs.Graph.of("", np.array([7, 7, 9, 7]), np.array([9, 9, 9, 5]), np.array([3, 4, 5, 6]))
    assert graph.nodes == 3 and graph.links.tolist() == [[1, 0], [1, 2]] and graph.lengths.tolist() == [6, 3]


def test_flows_are_read_with_their_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Capacities of parallel links add up, and source and sink are found among the nodes that are left."""
    problem = "c told\np max 9 5\nn 8 s\nn 3 t\na 8 5 4\na 5 3 2\na 5 3 5\na 5 5 9\na 8 3 1\n"
    (tmp_path / graphs.FLOWS["flow-roads"]).write_bytes(gzip.compress(problem.encode()))
    monkeypatch.setattr(graphs, "DATA", tmp_path)
    made = graphs.flows("flow-roads")
    assert made.nodes == 3 and made.flow == (2, 0)
    assert made.links.tolist() == [[1, 0], [2, 0], [2, 1]] and made.lengths.tolist() == [7, 1, 4]
    assert not networks.unfit("ortools-1", made) and networks.unfit("networkit-2", made)
    assert networks.unfit("ortools-1", graphs.grid("", 3))


def test_what_libgrape_lite_writes(tmp_path: Path) -> None:
    """A file for each worker; nodes that were not reached have the largest integer, or infinity."""
    (tmp_path / "result_frag_0").write_text("2 1\n0 0\n")
    (tmp_path / "result_frag_1").write_text("1 9223372036854775807\n3 infinity\n")
    assert networks_programs.grape_answer("bfs", tmp_path, 4).tolist() == [0, np.inf, 1, np.inf]
    assert networks_programs.grape_answer("components", tmp_path, 4).tolist() == [4, 1]


def test_iterations_of_pagerank_are_counted() -> None:
    """As many as networkx's rule takes: of two nodes that link to each other none is needed after the first."""
    pair = graphs.Graph("", np.array([[0, 1], [1, 0]]), np.ones(2), 2)
    assert networks_programs.iterations(pair) == 1
    star = graphs.Graph("", np.array([[0, 1], [0, 2], [1, 0], [2, 0]]), np.ones(4), 3)
    # The error is multiplied by -0.85 each time.
    assert networks_programs.iterations(star) == pytest.approx(np.log(1e-6) / np.log(0.85), abs=5)


def test_a_grid_takes_the_place_of_roads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "DATA", tmp_path)
    said: list[str] = []
    assert graphs.present(("A", "roads", "web"), said.append) == ["A", "grid-250"]
    assert len(said) == 2 and "a grid takes its place" in said[0]


def test_what_differs_from_most_is_named(tmp_path: Path) -> None:
    scores = np.array([0.5, 0.3, 0.2])
    for system, values in (("a-1", scores), ("b-1", scores + 1e-6), ("c-1", scores[::-1])):
        np.save(tmp_path / f"{system}-pagerank.npy", values)
        np.save(tmp_path / f"{system}-paths.npy", np.array([0.0, 2.0, np.inf]))
    assert networks.differing(tmp_path, ["a-1", "b-1", "c-1"]) == ["c-1 found another pagerank than a-1, b-1"]


def test_ratio_is_of_the_better_of_ours_to_the_best_peer() -> None:
    times = {"tidemill-1": [4.0], "tidemill-2": [2.0, 3.0, 9.0], "igraph-1": [10.0], "gap-2": [6.0]}
    assert networks.best_ratio(times) == "0.50 gap-2"
    assert networks.best_ratio({"tidemill-1": [1.0]}) == "-"


def test_rounds_are_compared_with_the_cost_of_hadoop() -> None:
    account = {
        "rounds": 80,
        "cut_links": 10,
        "exchange_seconds": 1.0,
        "compute_seconds": 0.5,
        "sync": "global",
        "local_sweeps": 0,
    }
    plain = {"mbit": 10, "graph": "A", "algorithm": "paths", "sync": "global", "seconds": 4.0, "account": account}
    plain |= {"links": 100, "sweeps": 80.0, "sent": 2e6, "partition_s": 0.5, "right": True}
    partial = plain | {"sync": "partial", "seconds": 2.0, "account": account | {"rounds": 10}}
    found = {"setting": dataclasses.asdict(networks.SETTINGS["quick"].sync), "cases": [plain, partial]}
    text = networks_sync.section(found | {"failures": {}, "missing": None})
    (line,) = (line for line in benched.lines(text) if line.startswith("| A, 10 Mbit/s, partial"))
    cells = ["10.0%", "500 ms", "10", "8.00", "80", "2 MB", "1.5 s", "1.00", "2 s", "2.00", "202 s", "7.94"]
    assert [cell.strip() for cell in line.strip("|").split("|")][1:] == cells

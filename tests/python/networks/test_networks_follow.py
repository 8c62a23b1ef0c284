"""Networks that change: after each window degrees, components and PageRank are those of networkx for the links there are."""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import launched
import networkx as nx
import numpy as np
import pytest
import tidemill as tm
from standing import run
from tidemill.networks._changing import NEVER, Arrived, Rules, Share, split

Row = dict[str, Any]
#: Two ends, and perhaps a weight.
Link = tuple[Any, ...]


def history(seed: int, directed: bool, text: bool, windows: int = 8) -> tuple[list[Row], list[list[Link]]]:
    """Links that come and go, with several between the same nodes, loops, and windows in which most go; and those of each window."""
    print(f"seed {seed}")
    dice = random.Random(seed)
    rows: list[Row] = []
    present: list[Link] = []
    after = []
    for window in range(windows):
        leaving = dice.random()
        for _ in range(40):
            if present and dice.random() < leaving:
                link, op = present.pop(dice.randrange(len(present))), "remove"
                if not directed and dice.random() < 0.5:
                    link = link[::-1]
            else:
                ends = [dice.randrange(25) for _ in range(2)]
                source, target = (f"n{end}" if text else 7 * end - 20 for end in ends)
                link, op = (source, target), "add"
                present.append(link)
            rows.append({"from": link[0], "to": link[1], "op": op, "s": window})
        after.append(list(present))
    return rows, after


def aging(seed: int, directed: bool, lifetime: float | None, windows: int = 8) -> tuple[list[Row], list[list[Link]]]:
    """As `history`, with weights, and links that go after `lifetime` seconds: of those between two nodes the oldest, and lightest, first."""
    print(f"seed {seed}")
    dice = random.Random(seed)
    rows: list[Row] = []
    present: list[tuple[float, float, Link]] = []
    after = []

    def joins(link: Link, other: Link) -> bool:
        return link == other or (not directed and link == other[::-1])

    for window in range(windows):
        leaving: list[Link] = []
        for _ in range(40):
            time = window + dice.randrange(1000) / 1000
            row: Row = {"ms": round(1000 * time), "weight": None, "op": "remove"}
            staying = [link for _, _, link in present if sum(joins(link, gone) for gone in leaving) == 0]
            if staying and dice.random() < 0.4:
                leaving.append(dice.choice(staying))
                link = leaving[-1] if directed or dice.random() < 0.5 else leaving[-1][::-1]
            else:
                link = dice.randrange(25), dice.randrange(25)
                row |= {"weight": dice.choice([0.0, 0.5, 1.0, 2.25, 1000.0]), "op": "add"}
                end = float("inf") if lifetime is None else row["ms"] / 1000 + lifetime
                present.append((end, row["weight"], link))
            rows.append({"from": link[0], "to": link[1], **row})
        for gone in leaving:
            present.remove(min(one for one in present if joins(one[2], gone)))
        present = [one for one in present if one[0] > window + 1]
        after.append([(*link, weight) for _, weight, link in present])
    return sorted(rows, key=lambda row: row["ms"]), after


def aging_stream(rows: list[Row], **options: Any) -> tm.DataSet:
    table = tm.from_dict({name: [row[name] for row in rows] for name in rows[0]})
    table = table.select("from", "to", "op", "weight", at=tm.col("ms").cast("timestamp[ms]"))
    return tm.stream.from_table(table.collect(), time="at", **options)


def followed_aging(rows: list[Row], **options: Any) -> tm.DataSet:
    exact: dict[str, Any] = {
        "tol": 1e-7,
        "min_change": 1e-6,
        "op": "op",
        "every": "1s",
        "on": "at",
        "weights": "weight",
    }
    pace = {"rows_per_s": options.pop("rows_per_s", 0)}
    return tm.networks.follow(aging_stream(rows, **pace), "from", "to", **exact | options)


def stream(rows: list[Row], **options: Any) -> tm.DataSet:
    table = tm.from_dict({name: [row[name] for row in rows] for name in rows[0]})
    table = table.select("from", "to", "op", at=tm.col("s").cast("timestamp[s]"))
    return tm.stream.from_table(table.collect(), time="at", **options)


def followed(rows: list[Row], **options: Any) -> tm.DataSet:
    exact: dict[str, Any] = {"tol": 1e-6, "min_change": 1e-5, "op": "op", "every": "1s", "on": "at"} | options
    pace = {"rows_per_s": exact.pop("rows_per_s", 0)}
    return tm.networks.follow(stream(rows, **pace), "from", "to", **exact)


def written(made: tm.DataSet) -> list[Row]:
    found: list[Row] = []
    made.write_stream(lambda table: found.extend(table.to_pylist()))
    return found


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["round"], row["node"]))


def on_a_worker(rows: list[Row], options: dict[str, Any]) -> list[Row]:
    return written(followed(rows, **options))


def check(found: list[Row], after: list[list[Link]], directed: bool, duplicates: str) -> None:
    """The newest values of nodes are networkx's after each window."""
    several = duplicates == "keep"
    kinds: dict[tuple[bool, bool], Any] = {
        (True, True): nx.MultiDiGraph,
        (True, False): nx.DiGraph,
        (False, True): nx.MultiGraph,
    }
    values: dict[Any, Row] = {}
    for window, links in enumerate(after):
        for row in found:
            if row["round"] == window:
                is_there = row["score"] is not None
                assert is_there == (row["component"] is not None)
                values[row["node"]] = row
        graph = kinds.get((directed, several), nx.Graph)()
        for link in links:
            graph.add_edge(*link[:2], weight=link[2] if len(link) > 2 else 1)
        assert {node for node, row in values.items() if row["score"] is not None} == set(graph), window
        scores = nx.pagerank(graph, tol=1e-13, max_iter=1000) if len(graph) else {}
        for members in nx.weakly_connected_components(graph) if directed else nx.connected_components(graph):
            assert {values[node]["component"] for node in members} == {min(members)}, window
        for node in graph:
            row = values[node]
            assert row["score"] == pytest.approx(scores[node], abs=1e-6), window
            if directed:
                assert (row["in_degree"], row["out_degree"]) == (graph.in_degree(node), graph.out_degree(node))
            else:
                assert row["degree"] == graph.degree(node)
            if "strength" in row:
                assert row["strength"] == pytest.approx(graph.degree(node, weight="weight"), rel=1e-12)
            elif "in_strength" in row:
                strengths = graph.in_degree(node, weight="weight"), graph.out_degree(node, weight="weight")
                assert (row["in_strength"], row["out_strength"]) == pytest.approx(strengths, rel=1e-12)


@pytest.mark.parametrize("lifetime", [None, 1.5])
@pytest.mark.parametrize("directed", [False, True], ids=["undirected", "directed"])
@pytest.mark.parametrize("copies", [1, 3])
def test_weights_and_lifetimes(copies: int, directed: bool, lifetime: float | None) -> None:
    """A node that loses its last link by itself leaves; a weight of 0 leads nowhere; removals take the first to go."""
    rows, after = aging(20 + copies, directed, lifetime)
    found = written(followed_aging(rows, directed=directed, lifetime=lifetime, parallelism=copies))
    check(found, after, directed, "keep")
    if lifetime is not None:
        assert any(row["score"] is None for row in found), "no node has left"


@pytest.mark.parametrize("duplicates", ["keep", "first"])
def test_lifetimes_without_weights(duplicates: str) -> None:
    """A link that comes again before it goes is there without a break."""
    rows, after = aging(31, True, 2.0)
    # Of links between the same nodes that go at the same time another may have been removed: they have no weights here.
    found = written(followed_aging(rows, weights=None, lifetime="2s", duplicates=duplicates, parallelism=2))
    check(found, [[link[:2] for link in links] for links in after], True, duplicates)


def test_weights_to_start_from() -> None:
    """They count; and links of the network stay."""
    begun = tm.networks.read(([1, 1], [2, 3], [3.0, 1.0]))
    rows = [{"from": 2, "to": 3, "op": "add", "weight": 2.0, "ms": 500}]
    rows += [{"from": 9, "to": 1, "op": "add", "weight": 1.0, "ms": 8500}]
    found = written(followed_aging(rows, start=begun, lifetime="1s"))
    stays = [(1, 2, 3.0), (1, 3, 1.0)]
    check(found, [[*stays, (2, 3, 2.0)], stays, [*stays, (9, 1, 1.0)]], True, "keep")


@pytest.mark.parametrize("weight", [-1.0, float("inf"), float("nan"), None])
def test_weights_that_do_not_fit(weight: float | None) -> None:
    rows = [{"from": 1, "to": 2, "op": "add", "weight": 1.0, "ms": 0}]
    rows += [{"from": 2, "to": 3, "op": "add", "weight": weight, "ms": 0}]
    for copies in (1, 2):
        with pytest.raises(tm.DataSetError, match=r"the link from 2 to 3 has the weight (-1.0|inf|nan)"):
            written(followed_aging(rows, parallelism=copies))


@pytest.mark.parametrize(
    ("copies", "directed", "duplicates"), [(1, False, "keep"), (3, True, "first"), (3, False, "keep")]
)
def test_it_starts_from_a_network(copies: int, directed: bool, duplicates: str) -> None:
    """As if its links had come in the first window: it ends where the whole history does."""
    text = duplicates == "first"
    rows, after = history(copies, directed, text)
    ends = tuple(zip(*after[3], strict=True))
    begun = tm.networks.read(ends, directed=directed, duplicates="keep", self_loops="keep")
    late = [row for row in rows if row["s"] > 3]
    options = {"directed": directed, "duplicates": duplicates, "parallelism": copies}
    check(written(followed(late, start=begun, **options)), after[4:], directed, duplicates)
    wrong = tm.networks.read(([1] if text else ["a"], [2] if text else ["b"]), directed=directed)
    with pytest.raises(tm.DataSetError, match="ids are"):
        followed(late, start=wrong, directed=directed)
    with pytest.raises(tm.DataSetError, match="pass directed="):
        followed(late, start=begun, directed=not directed)


@pytest.mark.parametrize("duplicates", ["keep", "first"])
@pytest.mark.parametrize("directed", [False, True], ids=["undirected", "directed"])
@pytest.mark.parametrize("copies", [1, 3])
def test_values_are_those_of_a_batch(copies: int, directed: bool, duplicates: str) -> None:
    text = duplicates == "first"
    rows, after = history(copies, directed, text)
    found = written(followed(rows, directed=directed, duplicates=duplicates, parallelism=copies))
    check(found, after, directed, duplicates)
    # A node's row comes only if something changed.
    told: dict[Any, Row] = {}
    for row in found:
        values = {name: value for name, value in row.items() if name not in ("round", "end")}
        assert told.get(row["node"]) != values
        told[row["node"]] = values


@pytest.mark.parametrize("workers", [2, 3])
def test_values_on_several_workers(workers: int) -> None:
    """Also when all rows flow on from the copy of one worker."""
    rows, after = history(10 + workers, True, False)
    parts = run(on_a_worker, rows, {}, workers=workers)
    assert all(parts), "each worker has nodes"
    check([row for part in parts for row in part], after, True, "keep")
    first, *others = run(on_a_worker, rows, {"root": 0}, workers=workers)
    assert not any(others)
    check(first, after, True, "keep")


def test_measures_and_numbers_of_links() -> None:
    """Integers say by how many links there are more; without a window there is a round at the end."""
    table = tm.from_dict({"source": ["a", "a", "b"], "target": ["b", "b", "c"], "n": [3, -1, 1]}).collect()
    made = tm.networks.follow(tm.stream.from_table(table), op="n", measures=["components"], directed=False)
    assert made.schema.keys() == {"round", "end", "node", "degree", "component"}
    rows = sorted(written(made), key=lambda row: row["node"])
    assert [(row["node"], row["degree"], row["component"], row["end"]) for row in rows] == [
        ("a", 2, "a", None),
        ("b", 3, "a", None),
        ("c", 1, "a", None),
    ]


def test_links_that_are_not_there() -> None:
    """The error names the link; a warning counts; either way nothing else changes."""
    rows = [
        {"from": 1, "to": 2, "op": "add", "s": 0},
        {"from": 2, "to": 1, "op": "remove", "s": 1},
        {"from": 8, "to": 9, "op": "remove", "s": 1},
    ]
    for copies in (1, 2):
        with pytest.raises(tm.DataSetError, match=r"there is no link from (2 to 1|8 to 9), which should be removed"):
            written(followed(rows, parallelism=copies))
        with pytest.warns(tm.networks.MissingLinksWarning, match="2 links that should be removed are not there"):
            found = in_order(written(followed(rows, parallelism=copies, missing="warn")))
        assert {row["node"] for row in found} == {1, 2} and {row["round"] for row in found} == {0}
        assert in_order(written(followed(rows, parallelism=copies, missing="ignore"))) == found


def test_links_that_went_by_themselves() -> None:
    """They can be removed; only if it is asked for, that is an error."""
    rows = [{"from": 1, "to": 2, "op": "add", "s": 0}, {"from": 2, "to": 3, "op": "add", "s": 2}]
    rows += [{"from": 1, "to": 2, "op": "remove", "s": 3}]
    found = written(followed(rows, lifetime="1500ms"))
    # In between there was a window without rows.
    assert {row["node"] for row in found if row["round"] == 2 and row["score"] is not None} == {2, 3}
    with pytest.raises(tm.DataSetError, match="there is no link from 1 to 2, which should be removed"):
        written(followed(rows, lifetime="1500ms", missing="raise"))


@pytest.mark.parametrize("copies", [1, 3])
def test_links_go_in_windows_without_rows(copies: int) -> None:
    """Time goes on with rows that are filtered out before; there is a window for each link, and none behind the last row."""
    rows: list[Row] = [{"from": 1, "to": 2, "op": "add", "s": 0}, {"from": 2, "to": 3, "op": "add", "s": 4}]
    rows += [{"from": 0, "to": 0, "op": "tick", "s": second} for second in range(5, 10)]
    rows += [{"from": 4, "to": 5, "op": "add", "s": 20}]
    ticking = stream(rows).filter(tm.col("op") != "tick")
    exact: dict[str, Any] = {"op": "op", "every": "1s", "on": "at", "parallelism": copies}
    found = written(tm.networks.follow(ticking, "from", "to", lifetime="2500ms", **exact))
    ends = {(row["round"], row["end"].second): set() for row in found}
    for row in found:
        ends[row["round"], row["end"].second].add((row["node"], row["score"] is not None))
    assert ends == {
        (0, 1): {(1, True), (2, True)},
        (1, 3): {(1, False), (2, False)},
        (2, 5): {(2, True), (3, True)},
        (3, 7): {(2, False), (3, False)},
        (4, 21): {(4, True), (5, True)},
    }


def test_links_go_by_the_clock() -> None:
    """With time by the clock a link goes though no row comes: the source ends only when it has gone."""
    gone = threading.Event()

    def links(split: str, position: int | None) -> Iterator[Any]:
        if position is None:
            yield [{"source": 1, "target": 2}], 1
        while not gone.is_set():
            yield None

    def take(table: tm.Table) -> None:
        if any(row["degree"] == 0 for row in table.to_pylist()):
            gone.set()

    clock = tm.stream.processing_time("at")
    source = tm.stream.from_function(links, {"source": "int64", "target": "int64"}, splits=["all"], time=clock)
    exact: dict[str, Any] = {"every": "100ms", "on": "at", "directed": False, "measures": ["degrees"], "parallelism": 1}
    tm.networks.follow(source, lifetime="300ms", **exact).write_stream(take)
    assert gone.is_set()


def test_loops() -> None:
    rows = [{"from": 1, "to": 1, "op": "add", "s": 0}, {"from": 1, "to": 2, "op": "add", "s": 0}]
    degrees = {
        how: {row["node"]: row["degree"] for row in written(followed(rows, directed=False, self_loops=how))}
        for how in ("keep", "drop")
    }
    assert degrees == {"keep": {1: 3, 2: 1}, "drop": {1: 1, 2: 1}}
    with pytest.raises(tm.DataSetError, match="a link leads from 1 to itself"):
        written(followed(rows, self_loops="raise"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"source": "x"}, "there is no column 'x'"),
        ({"source": "at"}, "ids are integers or strings"),
        ({"op": "at"}, "it says 'add' or 'remove'"),
        ({"measures": ["rank"]}, "not 'rank'"),
        ({"missing": "no"}, "missing is 'raise', 'warn' or 'ignore', not 'no'"),
        ({"alpha": 1.0}, "alpha is from 0 to below 1"),
        ({"every": "1s"}, "pass both, or neither"),
        ({"weights": "x"}, "there is no column 'x'"),
        ({"weights": "op"}, "'op' is Utf8.*, and weights are numbers"),
        ({"weights": "from", "duplicates": "first"}, "pass duplicates='keep'"),
        ({"lifetime": "1s"}, "pass every= and on=, too"),
        ({"lifetime": 0, "every": "1s", "on": "at"}, "lifetime=0 is not positive"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], words: str) -> None:
    rows = stream([{"from": 1, "to": 2, "op": "add", "s": 0}])
    with pytest.raises(tm.DataSetError, match=words):
        tm.networks.follow(rows, **{"source": "from", "target": "to", **options})
    with pytest.raises(tm.DataSetError, match=r"this is a table; use networks\.read"):
        tm.networks.follow(tm.from_dict({"source": [1], "target": [2]}))


@pytest.mark.parametrize("column", ["source", "change"])
def test_integers_that_are_too_large(column: str) -> None:
    """They would become negative: another node, or links that go."""
    links = {"source": [1, 2], "target": [2, 3], "change": [1, 1], "at": [0, 1]}
    arrays = {name: np.array(values, np.uint64) for name, values in links.items()}
    arrays[column][1] = 2**63 + 5
    rows = tm.Table.from_numpy(arrays)
    rows = tm.from_arrow(rows).with_columns(at=tm.col("at").cast("timestamp[s]")).collect()
    made = tm.networks.follow(tm.stream.from_table(rows, time="at"), op="change", parallelism=2)
    with pytest.raises(tm.DataSetError, match=f"column '{column}' has {2**63 + 5}, and follow takes integers below"):
        made.write_stream(lambda rows: None)


def test_newest_values() -> None:
    rows, after = history(4, True, True)
    nodes = tm.networks.LiveValues()
    followed(rows).write_stream(nodes)
    graph = nx.MultiDiGraph(after[-1])
    assert len(nodes) == len(graph) and nodes.round == len(after) - 1
    scores = nx.pagerank(graph, tol=1e-13, max_iter=1000)
    assert nodes.top(1)[0][1] == pytest.approx(max(scores.values()), abs=1e-6)
    for members in nx.weakly_connected_components(graph):
        assert nodes.members(min(members)) == members
    with pytest.raises(KeyError, match="the network has no node 'x'"):
        nodes["x"]


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("copies", [(2, 2), (3, 2), (1, 3)])
def test_a_job_that_goes_on(tmp_path: Path, copies: tuple[int, int], weighted: bool) -> None:
    """With as many copies the rows are the same to the bit; with others the values are those of networkx."""
    if weighted:
        rows, after = aging(6, True, 3.0, windows=10)
        follow: Any = functools.partial(followed_aging, rows, lifetime="3s")
    else:
        rows, after = history(5, True, True, windows=10)
        follow = functools.partial(followed, rows)
    calm = written(follow(parallelism=copies[0]))
    found: list[Row] = []

    def take(table: tm.Table) -> None:
        found.extend(table.to_pylist())
        if not failed and len(found) >= 60:
            raise RuntimeError("the disk is full")

    def write(parallelism: int, pace: int) -> None:
        made = follow(parallelism=parallelism, rows_per_s=pace)
        made.write_stream(take, checkpoint=tm.stream.Checkpoint(tmp_path, interval="50ms"))

    failed: list[bool] = []
    with pytest.raises(tm.DataSetError, match="the disk is full"):
        write(copies[0], 1500)
    failed.append(True)
    write(copies[1], 0)
    # Rows since the last checkpoint come again.
    check(found, after, True, "keep")
    if copies[0] == copies[1]:
        assert {(row["round"], row["node"]): row for row in found} == {(row["round"], row["node"]): row for row in calm}


class Alone:
    """The communicator of a single copy."""

    rank, size = 0, 1

    def allreduce(self, values: Any) -> Any:
        return values


def grown(windows: list[list[tuple[int, int, int, float]]], **options: Any) -> Share:
    """The share of a single copy after windows of sources, targets, changes and weights."""
    rules = {"directed": True, "weighted": True, "tol": 1e-9} | options
    share = Share(
        Rules(several=True, components=True, pagerank=True, alpha=0.85, is_text=False, apart=True, **rules), 0, 1
    )
    for window in windows:
        sources, targets, changes, weights = (np.array(column) for column in zip(*window, strict=True))
        ends = np.full(len(sources), NEVER)
        share.apply(Alone(), Arrived(sources, targets, changes, ends, weights.astype(float)), 0)
    return share


def in_words(shares: list[Share | None]) -> tuple[dict[int, Any], list[Any]]:
    """What shares know of nodes, and their links, by ids."""
    nodes: dict[int, Any] = {}
    names: dict[int, int] = {}
    links = []
    for share in shares:
        assert share is not None
        for id_, slot in share._slots.items():
            names[slot * share.copies + share.copy] = id_
    for share in shares:
        assert share is not None and share.links is not None
        for id_, slot in share._slots.items():
            told = share.names[slot], share.outgoing[slot], share.incoming[slot], share.leaving[slot]
            linked = names[share.labels[slot]], share.entering[slot]
            nodes[id_] = (*told, *linked, share.scores[slot], share.residuals[slot])
        for key, end, weight in zip(share.links.keys, share.links.ends, share.links.weights, strict=True):
            source = names[(key >> 32) * share.copies + share.copy]
            links.append((source, names[key & 0xFFFFFFFF], end, weight))
    return nodes, sorted(links)


@pytest.mark.parametrize("counts", [[2], [3, 2], [3, 2, 4, 1]])
def test_shares_of_other_numbers_of_copies(counts: list[int]) -> None:
    """They know the same nodes and links, which are spread over all copies."""
    dice = np.random.default_rng(8)
    windows = [[(*dice.integers(0, 60, 2).tolist(), 1, dice.random()) for _ in range(150)] for _ in range(2)]
    shares: list[Share | None] = [grown(windows)]
    before = in_words(shares)
    for count in counts:
        shares = split(shares, count)
        assert len(shares) == count
        assert all(share is not None and len(share) and len(share.rows.keys) for share in shares)
        assert in_words(shares) == before


@pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])
@pytest.mark.parametrize("others", [0, 1, 30])
def test_weights_of_very_different_sizes(others: int, directed: bool) -> None:
    """After each window scores are those of a batch: a score that is scaled by their ratio would lose all of its digits."""
    dice = np.random.default_rng(others)
    calm = [(*dice.integers(0, 12, 2).tolist(), 1, 1.0) for _ in range(others)]
    first = [(20, 21, 1, 1e-9), (21, 22, 1, 2.0), (22, 20, 1, 1.0), *calm]
    heavy = [(20, 22, 1, 1e9), (20, 21, 1, 1e-9), (21, 20, 1, 1e-9)]
    windows = [first, heavy, [(20, 22, -1, 0.0)], [(20, 21, 1, 1e9)], [(20, 21, -2, 0.0), (20, 22, 1, 1e-9)], heavy]
    for count in range(1, len(windows) + 1):
        share = grown(windows[:count], directed=directed)
        names = {slot: id_ for id_, slot in share._slots.items()}
        graph = nx.DiGraph()
        share.rows.merge()
        assert share.rows.weights is not None
        for key, weight in zip(share.rows.keys, share.rows.weights, strict=True):
            graph.add_edge(names[key >> 32], names[key & 0xFFFFFFFF], weight=weight)
        expected = nx.pagerank(graph, tol=1e-14, max_iter=5000)
        total = sum(share.scores[slot] for slot in names)
        for slot, name in names.items():
            assert share.scores[slot] / total == pytest.approx(expected[name], abs=1e-8), (count, name)


def test_strengths_forget_rounding_errors() -> None:
    """A weight that drowned others leaves nothing behind."""
    share = grown([[(1, 3, 1, 1e16), (2, 3, 1, 1.0), (4, 3, 1, 0.5)], [(1, 3, -1, 0.0)], [(4, 3, -1, 0.0)]])
    assert share.entering[share._slots[3]] == 1.0 and share.incoming[share._slots[3]] == 1


KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
import tidemill as tm
from tidemill.networks import _follow

out = Path(sys.argv[1])
marker = out / "killed"

class Dying(_follow._Step):
    def __call__(self, comm, rows, context):
        # In the middle of a round: others wait for this worker in a collective.
        if context.state is not None and context.state.round == 5 and comm.rank == 1 and len(sys.argv) > 2:
            if not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(comm, rows, context)

_follow._Step = Dying
dice = np.random.default_rng(3)
ends = dice.integers(0, 60, (2, 600))
table = tm.from_dict({"source": ends[0], "target": ends[1], "s": np.arange(600) // 75})
table = table.select("source", "target", at=tm.col("s").cast("timestamp[s]")).collect()
stream = tm.stream.from_table(table, time="at", rows_per_s=600)
made = tm.networks.follow(stream, every="1s", on="at", tol=1e-4, parallelism=2)
made.write_stream(tm.stream.to_files(out / "rows", format="parquet"), checkpoint=tm.stream.Checkpoint(out / "checkpoints", interval="100ms"))
"""


def test_a_worker_that_is_killed(tmp_path: Path) -> None:
    """Every row comes exactly once, to the bit."""
    program = tmp_path / "killed.py"
    program.write_text(KILLED)
    found = []
    for name, more in (("calm", []), ("hit", ["kill"])):
        out = tmp_path / name
        out.mkdir()
        done = launched.run("run", "-n", "2", "--restarts", "3", program, out, *more)
        assert done.returncode == 0, done.stderr.decode()
        assert (out / "killed").exists() == bool(more)
        rows = tm.read_parquet(out / "rows").collect().to_pylist()
        found.append(in_order(rows))
    assert found[0] == found[1] and len(found[0]) > 100

"""Files that workers read by shares: every format, the same network on any number of workers, and errors by line on all."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tidemill as tm
from standing import run
from tidemill.networks import _text

MARKET = "%%MatrixMarket matrix coordinate"

#: By name, texts with what a share may begin or end at: comments, empty lines, both kinds of line ends, no last line end.
FILES = {
    "roads.gr": "c roads\nc\np sp 7 6\na 1 2 5\na 2 3 7.5\nc more\na 1 3 20\r\na 3 7 1\n\na 7 6 2\na 1 2 4",
    "flow.max": "p max 4 3\nn 1 s\na 1 2 5\na 2 3 7\na 3 4 7\nn 4 t\n",
    "colors.col": "c\np edge 5 3\ne 1 2\ne 2 3\ne 5 1\n",
    "real.mtx": f"{MARKET} real general\n% a comment\n\n5 5 4\n1 2 0.5\r\n% within\n2 1 1e3\n5 1 -2\n3 3 1",
    "pattern.mtx": f"{MARKET} pattern symmetric\n4 4 4\n2 1\n3 1\n% within\n4 3\n4 4\n",
    "skew.mtx": f"{MARKET} real skew-symmetric\n3 3 2\n2 1 5\n3 2 -1\n",
    "none.mtx": f"{MARKET} integer general\n6 6 0\n",
    "plain.graph": "% first\n6 5\n2 4\n1 3\r\n% within\n2 4\n1 3 5\n4\n\n\n",
    "weights.graph": "3 2 011\n9 2 5\n9 1 5 3 6\n9 2 6\n",
    "sized.graph": "3 2 100\n4 2\n4 1 3\n4 2",
    "empty.metis": "0 0\n",
    "short.txt": "1 2\n",
    "comments.txt": "# nothing\n% but comments\n",
}


def content(net: Any) -> dict[str, Any]:
    whole = net.gather()
    return {
        "kind": (net.n, net.m, net.directed, net.weighted, net.attributes),
        "ids": whole.ids.tolist(),
        "rows": (whole.offsets.tolist(), whole.targets.tolist()),
        "weights": None if whole.weights is None else whole.weights.tolist(),
    }


def read_shares(folder: str, names: list[str], options: dict[str, Any]) -> list[Any]:
    return [content(tm.networks.read(f"{folder}/{name}", together=True, **options)) for name in names]


@pytest.mark.parametrize("duplicates", ["first", "keep"])
def test_shares_are_the_whole_file(tmp_path: Path, duplicates: Any) -> None:
    """A line that two workers or none read, a header that one takes for a link, or a row numbered wrongly changes the network."""
    names = []
    for name, text in FILES.items():
        (tmp_path / name).write_bytes(text.encode())
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
        names += [name, f"{name}.gz"]
    expected = [content(tm.networks.read(tmp_path / name, duplicates=duplicates)) for name in names]
    assert expected[names.index("skew.mtx")]["weights"] == [-5.0, 5.0, 1.0, -1.0]
    assert expected[names.index("plain.graph")]["kind"] == (6, 5, False, False, {})
    for workers in (1, 2, 3, 4):
        for found in run(read_shares, str(tmp_path), names, {"duplicates": duplicates}, workers=workers):
            for name, one, other in zip(names, found, expected, strict=True):
                assert one == other, (name, workers)


def parsed_here(path: str) -> tuple[int, Any]:
    """On a worker: how many lines it parsed, and the network."""
    lines = 0
    parse = _text.network_parse

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal lines
        found = parse(*arguments, **options)
        lines += found[3]
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_text, "network_parse", counted)
        patch.setattr(_text, "_SENT_BYTES", 10_000)
        found = content(tm.networks.read(path, together=True))
    return lines, found


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2"])
def test_each_worker_parses_a_share(tmp_path: Path, suffix: str) -> None:
    """Lines of a compressed file are sent in their order, so that the first of several links is that of one worker."""
    rng = np.random.default_rng(5)
    ends = rng.integers(1, 300, (60_000, 2))
    lines = [f"a {a} {b} {weight!r}" for (a, b), weight in zip(ends.tolist(), rng.random(60_000).tolist(), strict=True)]
    text = "\n".join(["p sp 299 60000", *lines]).encode()
    path = tmp_path / f"links.gr{suffix}"
    path.write_bytes({"": bytes, ".gz": gzip.compress, ".bz2": lambda text: bz2.compress(text, 1)}[suffix](text))
    expected = content(tm.networks.read(path))
    for workers in (2, 3):
        every = run(parsed_here, str(path), workers=workers)
        assert sum(parsed for parsed, _ in every) == 60_000
        assert all(parsed > 60_000 / workers / 2 for parsed, _ in every)
        assert all(found == expected for _, found in every)


BAD = {
    "head.gr": ("c\na 1 2 3\n", "no line 'p KIND"),
    "mark.gr": ("c\np sp 9 5\na 1 2 3\na 2 3 4\na 3 4 5\nb 4 5 6\na 5 6 7\n", "line 6: the line does not begin"),
    "node.gr": ("p sp 9 5\na 1 2 3\na 2 3 4\nc\na 3 4 5\na 4 10 6\na 5 6 7\n", "line 6: it names node 10,"),
    "end.max": ("p max 3 2\na 1 2 3\na 2 3 4\nn x s\n", "'n x s' is not 'n NODE s'"),
    "few.mtx": (f"{MARKET} pattern general\n3 3 4\n1 2\n1 3\n2 3\n", "there are 3 entries, not 4"),
    "text.mtx": (f"{MARKET} real general\n%\n4 4 4\n1 1 1\n1 2 1\n%\n1 x 1\n2 3 1\n", "line 7"),
    "zero.mtx": (f"{MARKET} pattern general\n4 4 4\n1 1\n1 2\n2 3\n0 1\n", "line 6: it names node 0,"),
    "few.graph": ("4 2\n2\n1 3\n2\n", "there are 3 lines for 4 nodes"),
    "many.graph": ("2 1\n2\n1\n\n1\n", "there are 4 lines for 2 nodes"),
    "half.graph": ("3 2\n2\n1 3\n\n", "there are 3 neighbors, not two for each of 2"),
    "node.graph": ("% one\n4 3\n2\n1 3\n%\n2 4\n7\n", "line 7: it names node 7,"),
    "text.graph": ("4 3\n2\n1 3\n2 4\nthree\n", "line 5: 'three' has something"),
    "weight.graph": ("4 3 1\n2 1\n1 1 3 1\n2 1 4 1\n3\n", "line 5: a neighbor has no weight"),
    "text.txt": ("1 2\n2 3\n3 4\n4 5\n5 six\n", "line 5"),
}


def told(folder: str, names: list[str]) -> list[str]:
    found = []
    for name in names:
        try:
            tm.networks.read(f"{folder}/{name}", together=True)
            found.append("")
        except ValueError as error:
            found.append(str(error))
    return found


def test_what_is_wrong_is_told_by_file_and_line_on_all_workers(tmp_path: Path) -> None:
    names = []
    for name, (text, _) in BAD.items():
        (tmp_path / name).write_text(text)
        (tmp_path / f"{name}.bz2").write_bytes(bz2.compress(text.encode()))
        names += [name, f"{name}.bz2"]
    damaged = gzip.compress(b"1 2\n" * 100_000)
    (tmp_path / "damaged.txt.gz").write_bytes(damaged[: len(damaged) // 2])
    names.append("damaged.txt.gz")
    words = [words for _, words in BAD.values() for _ in range(2)] + ["the compressed data is damaged"]
    for workers in (1, 3):
        for found in run(told, str(tmp_path), names, workers=workers):
            for name, message, part in zip(names, found, words, strict=True):
                assert part in message and str(tmp_path / name) in message, (name, workers)


def failing_alone(path: str, failing: int) -> str:
    """On a worker: one of them lacks what reads the header, and the others must not wait for it."""
    with pytest.MonkeyPatch.context() as patch:
        if tm.init().rank == failing:

            def broken(*_: Any) -> Any:
                raise OSError("the disk is gone")

            patch.setattr(_text, "_first_fields", broken)
        try:
            tm.networks.read(path, together=True)
        except OSError as error:
            return str(error)
    return ""


def test_a_worker_that_cannot_open_a_file_is_an_error_on_all(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"1 2\n2 3\n"))
    for failing in (0, 1):
        assert run(failing_alone, str(tmp_path / "a.txt.gz"), failing, workers=2) == ["the disk is gone"] * 2


def test_graphml_is_read_by_the_first_worker(tmp_path: Path) -> None:
    nx = pytest.importorskip("networkx")
    made = nx.Graph()
    made.add_edge("a", "b", weight=2.5)
    made.add_edge("b", "c", weight=1.5)
    made.add_node("d")
    nx.write_graphml(made, tmp_path / "a.graphml")
    expected = content(tm.networks.read(tmp_path / "a.graphml"))
    assert expected["kind"][:4] == (4, 2, False, True)
    for found in run(read_shares, str(tmp_path), ["a.graphml"], {}, workers=3):
        assert found == [expected]

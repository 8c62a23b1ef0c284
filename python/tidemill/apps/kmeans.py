"""``tidemill kmeans``: cluster a table with k-means on several workers, and draw the clusters.

Each worker reads its own share of the file; workers exchange only sums. Without a file, it clusters a generated set.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill._progress import Bar, Phases
from tidemill.apps import _formats, _picture, _table
from tidemill.apps._arguments import Parser
from tidemill.apps._table import Bad, Features, TableError
from tidemill.ml import KMeans
from tidemill.ml._job import Comm, active, allreduce
from tidemill.ml._lloyd import Iteration
from tidemill.ml._shard import Array, Shard

__all__ = ["main"]

#: Maximum number of clusters whose sizes are printed.
_SHOWN = 20
#: The number of clouds in the generated set.
_CLOUDS = 12


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="tidemill kmeans",
        description="Cluster the rows of a table with k-means, on all workers of the job.",
        epilog="Name columns as in the header, or number them from 0: --columns 0,4-10,width",
    )
    add = parser.add_argument
    add(
        "file",
        nargs="?",
        type=Path,
        help=".csv, .tsv or other text (also .gz), .parquet, .npy, or MNIST's idx-ubyte (default: a generated set)",
    )
    add("-k", "--clusters", type=int, metavar="K", help="number of clusters (default 8; 12 for the generated set)")
    add("--columns", metavar="LIST", help="columns to use (default: all)")
    add("--drop", metavar="LIST", help="columns to leave out, such as a label")
    add(
        "--text",
        choices=("drop", "one-hot"),
        default="drop",
        help="text columns: leave them out, or encode each value as a column of 0 and 1 (default %(default)s)",
    )
    add(
        "--categories-max",
        type=int,
        default=200,
        metavar="N",
        help="maximum number of values of a text column with --text one-hot (default %(default)s)",
    )
    add("--standardize", action="store_true", help="scale each column to mean 0 and standard deviation 1")
    add(
        "--bad-rows",
        choices=("raise", "skip"),
        default="raise",
        help="what to do with rows that cannot be used: stop, or skip and report them (default %(default)s)",
    )
    add("--delimiter", metavar="C", help="field separator of text files (default: detected)")
    add(
        "--header",
        choices=("auto", "yes", "no"),
        default="auto",
        help="whether the first line has the column names (default %(default)s)",
    )
    add("--dtype", choices=("float32", "float64"), default="float32", help="precision of rows (default %(default)s)")
    add(
        "--init",
        choices=("k-means||", "k-means++", "random"),
        default="k-means||",
        help="initial centers (default %(default)s)",
    )
    add(
        "--n-init",
        type=int,
        default=1,
        metavar="N",
        help="number of starts; the best result is kept (default %(default)s)",
    )
    add("--max-iter", type=int, default=300, metavar="N", help="maximum number of iterations (default %(default)s)")
    add(
        "--tol",
        type=float,
        default=1e-4,
        metavar="X",
        help="stop when centers move less than this (default %(default)s)",
    )
    add(
        "--algorithm",
        choices=("auto", "lloyd", "hamerly", "tree"),
        default="auto",
        help="algorithm; affects only the speed (default %(default)s)",
    )
    add("--seed", type=int, default=0, metavar="N", help="random seed (default %(default)s)")
    add(
        "--sample-rows",
        type=int,
        default=200_000,
        metavar="N",
        help="number of rows of the generated set (default %(default)s)",
    )
    add(
        "--out",
        type=Path,
        default=Path("kmeans-out"),
        metavar="DIR",
        help="output folder for labels, centers, summary and picture (default %(default)s)",
    )
    add("--no-out", action="store_true", help="write nothing")
    arguments = parser.parse_args(argv)
    if arguments.clusters is None:
        arguments.clusters = 8 if arguments.file else _CLOUDS
    if arguments.clusters < 1:
        parser.error("-k must be at least 1")
    if arguments.delimiter is not None:
        arguments.delimiter = {"\\t": "\t", "tab": "\t", "space": " "}.get(arguments.delimiter, arguments.delimiter)
        if len(arguments.delimiter) != 1:
            parser.error("--delimiter must be one character, or 'tab' or 'space'")
    return arguments


class _Shown(KMeans):
    """`KMeans` that shows its iterations in a bar and times its seeding."""

    bar: Bar
    phases: Phases
    first_shift = 0.0
    part = 0.0
    #: Over all starts.
    iterations = 0

    def _start(self, shard: Shard, rng: np.random.Generator) -> Array:
        self.bar.update(0.0, "choosing where to start")
        self.first_shift, self.part = 0.0, 0.0
        with self.phases.timed("seed"):
            return super()._start(shard, rng)

    def _report(self, iteration: Iteration) -> None:
        self.iterations += 1
        # Centers move less and less, by about the same factor each time, so the logarithm shows the progress.
        shift = max(iteration.shift, np.finfo(float).tiny)
        self.first_shift = self.first_shift or shift
        done = (math.log(self.first_shift) - math.log(shift)) / math.log(1e6)
        self.part = min(1.0, max(self.part, done, iteration.number / self.max_iter))
        self.bar.update(self.part, f"iteration {iteration.number}, inertia {iteration.inertia:.6g}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 0, or 1 if the input cannot be used; rank 0 reports why."""
    arguments = _arguments(argv)
    comm = active()
    try:
        _run(comm, arguments)
    except ValueError as error:
        # All ranks get the error for bad input.
        if comm.rank == 0:
            print(f"tidemill kmeans: {error}", file=sys.stderr)
        return 1
    return 0


def _run(comm: Comm, arguments: argparse.Namespace) -> None:
    phases, bar = Phases(), Bar(shown=comm.rank == 0)
    say = print if comm.rank == 0 else _silent
    begin = time.perf_counter()
    with phases.timed("read"):
        bar.update(0.0, "reading")
        features, good, bad, bad_count = _load(comm, arguments)
    bar.clear()
    total = round(float(allreduce(comm, np.array([float(len(features.x))]))[0]))
    say(
        f"{arguments.file or 'generated set'}: {total:,} rows of {features.x.shape[1]} columns on {comm.size} worker(s)"
    )
    for note in features.notes:
        say(f"  {note}")
    if bad_count:
        say(f"  {bad_count:,} bad rows skipped, label -1:{_listed(arguments.file, bad, bad_count)}")

    with phases.timed("prepare"):
        x, mean, deviation = features.x, np.zeros(features.x.shape[1]), np.ones(features.x.shape[1])
        if arguments.standardize:
            x, mean, deviation = _table.standardize(comm, x)
        rows = np.ascontiguousarray(x, dtype=arguments.dtype)
    model = _Shown(
        arguments.clusters,
        init=arguments.init,
        n_init=arguments.n_init,
        max_iter=arguments.max_iter,
        tol=arguments.tol,
        algorithm=arguments.algorithm,
        random_state=arguments.seed,
    )
    model.bar, model.phases = bar, phases
    fit = time.perf_counter()
    model.fit(rows)
    phases.seconds["iterate"] = time.perf_counter() - fit - phases.seconds["seed"]
    bar.clear()

    local = np.bincount(model.labels_, minlength=arguments.clusters).astype(np.float64)
    sizes = allreduce(comm, local).astype(np.int64)
    centres = model.cluster_centers_.astype(np.float64) * deviation + mean
    say(f"{_sizes(sizes)}")
    say(
        f"inertia {model.inertia_:.8g}{' (of standardized columns)' if arguments.standardize else ''}, "
        f"{model.n_iter_} iterations, {1e3 * phases.seconds['iterate'] / max(model.iterations, 1):.3g} ms each ({model._algorithm})"
    )
    if not arguments.no_out:
        with phases.timed("write"):
            summary = {
                "file": str(arguments.file) if arguments.file else None,
                "rows": total,
                "bad_rows": bad_count,
                "columns": features.names,
                "clusters": arguments.clusters,
                "sizes": sizes.tolist(),
                "inertia": model.inertia_,
                "iterations": model.n_iter_,
                "workers": comm.size,
                "algorithm": model._algorithm,
                "seed": arguments.seed,
            }
            title = f"{arguments.file.name if arguments.file else 'generated set'}: {total:,} rows, {arguments.clusters} clusters"
            _write(comm, arguments.out, features.names, x, model, centres, good, summary, title)
        say(f"wrote {', '.join(('clusters.svg', 'centres.csv', 'labels.npy', 'summary.json'))} to {arguments.out}")
    phases.seconds["all"] = time.perf_counter() - begin
    say("seconds: " + ", ".join(f"{name} {seconds:.3g}" for name, seconds in phases.seconds.items()))


def _silent(_: str) -> None:
    pass


def _load(comm: Comm, arguments: argparse.Namespace) -> tuple[Features, NDArray[np.bool_], list[Bad], int]:
    """Read this rank's numbers, their row numbers, and the bad rows of all ranks."""
    if arguments.file is None:
        x = _generate(comm, arguments.sample_rows, arguments.seed)
        return Features(x, ["x", "y"], []), np.ones(len(x), dtype=bool), [], 0
    header = {"auto": None, "yes": True, "no": False}[arguments.header]
    share = _formats.read(
        comm,
        arguments.file,
        lambda columns: _table.select(
            columns,
            arguments.columns,
            arguments.drop,
        ),
        delimiter=arguments.delimiter,
        header=header,
    )
    bad, count = _table.locate_bad(comm, share)
    if count and arguments.bad_rows == "raise":
        raise TableError(f"{count:,} bad rows (--bad-rows skip leaves them out):{_listed(arguments.file, bad, count)}")
    features = _table.encode(comm, share, arguments.text, arguments.categories_max)
    return features, share.good, bad, count


def _listed(file: Path, bad: list[Bad], count: int, most: int = 10) -> str:
    lines = [f"\n    {file}:{one.place}: {one.reason}" for one in bad[:most]]
    return "".join(lines) + (f"\n    and {count - most:,} more" if count > most else "")


def _generate(comm: Comm, rows: int, seed: int) -> Array:
    """Generate this rank's part of the data set: a dozen round and elongated clouds in the plane.

    Every rank generates all and keeps its part, so that the set does not depend on the number of workers.
    """
    rng = np.random.default_rng(seed)
    middles = rng.uniform(-10, 10, (_CLOUDS, 2))
    shapes = rng.normal(0, 0.9, (_CLOUDS, 2, 2))
    which = rng.integers(_CLOUDS, size=rows)
    x: Array = middles[which] + np.einsum("nij,nj->ni", shapes[which], rng.normal(size=(rows, 2)))
    return x[rows * comm.rank // comm.size : rows * (comm.rank + 1) // comm.size]


def _sizes(sizes: NDArray[np.int64]) -> str:
    order = np.argsort(-sizes, kind="stable")
    shown = ", ".join(f"{label}: {sizes[label]:,}" for label in order[:_SHOWN])
    more = f", and {len(sizes) - _SHOWN} smaller ones" if len(sizes) > _SHOWN else ""
    return f"sizes (largest first)  {shown}{more}"


def _write(
    comm: Comm,
    out: Path,
    names: list[str],
    x: Array,
    model: KMeans,
    centres: Array,
    good: NDArray[np.bool_],
    summary: dict[str, Any],
    title: str,
) -> None:
    """Write labels from every rank to one file, each in its place; rank 0 writes the rest."""
    counts = comm.allgather(len(good))
    labels_file = out / "labels.npy"

    def prepare() -> None:
        if comm.rank == 0:
            out.mkdir(parents=True, exist_ok=True)
            np.lib.format.open_memmap(labels_file, mode="w+", dtype=np.int32, shape=(sum(counts),)).flush()

    _table.fail_together(comm, prepare)
    plane = _picture.Plane(comm, x, names)
    rows = _picture.sample_rows(comm, len(x))
    drawn = comm.allgather((plane.project(x[rows]), model.labels_[rows]))

    def write() -> None:
        labels = np.full(len(good), -1, dtype=np.int32)
        labels[good] = model.labels_
        start = sum(counts[: comm.rank])
        if len(labels):
            with labels_file.open("r+b") as file:
                file.seek(-4 * (sum(counts) - start), 2)
                file.write(labels.tobytes())
        if comm.rank != 0:
            return
        with (out / "centres.csv").open("w", newline="", encoding="utf-8") as table:
            writer = csv.writer(table)
            writer.writerow(["cluster", "size", *names])
            writer.writerows([i, summary["sizes"][i], *map(float, centre)] for i, centre in enumerate(centres))
        (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        points, point_labels = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
        middles = plane.project(model.cluster_centers_.astype(np.float64))
        picture = _picture.scatter(points, point_labels, middles, title, plane.labels)
        (out / "clusters.svg").write_text(picture, encoding="utf-8")

    _table.fail_together(comm, write)


if __name__ == "__main__":
    sys.exit(main())

"""K-means over the workers of a job, each of which has its own rows.

python examples/kmeans.py                        one worker
tidemill run -n 4 examples/kmeans.py             four; the result is the same
tidemill run -n 4 examples/kmeans.py 2000000     more rows
"""

import sys
import time

import numpy as np
import tidemill as tm
from tidemill.ml import KMeans


def main() -> None:
    job = tm.init()
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000

    # Every worker makes the same rows and keeps its part; a real program would read its part of a file.
    rng = np.random.default_rng(0)
    middles = rng.uniform(-10, 10, (8, 3))
    x = (middles[rng.integers(8, size=rows)] + rng.normal(size=(rows, 3))).astype(np.float32)
    mine = x[rows * job.rank // job.size : rows * (job.rank + 1) // job.size]

    begin = time.perf_counter()
    model = KMeans(n_clusters=8, random_state=0).fit(mine)  # every rank calls fit, and gets the same centres
    seconds = time.perf_counter() - begin

    if job.rank == 0:
        print(f"{rows:,} rows on {job.size} worker(s): {model.n_iter_} iterations in {seconds:.3f} s")
        print(f"inertia {model.inertia_:.6g}")
        print(np.round(model.cluster_centers_[model.cluster_centers_[:, 0].argsort()], 2))


if __name__ == "__main__":
    main()

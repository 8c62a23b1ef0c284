"""K-means on a stream: the centers of clusters follow points that drift.

tidemill run -n 2 examples/online_kmeans.py

Every second, all copies together move the centers by the points of that second; the weight of earlier points halves with
each second. The model is the state of the stream's solver, which checkpoints save.
"""

import numpy as np
import tidemill as tm
from tidemill.ml import KMeans, using

CLUSTERS = 3


def follow(comm, rows, context):
    """One window; each copy has some of its points."""
    columns = rows.to_numpy()
    points = np.stack([columns["x"], columns["y"]], axis=1)
    model = context.state or KMeans(CLUSTERS, random_state=0)
    with using(comm):
        context.state = model.partial_fit(points, decay=0.5)
    if comm.rank == 0:
        second = context.window_start.second
        return [{"second": second, "cluster": n, "x": x, "y": y} for n, (x, y) in enumerate(model.cluster_centers_)]
    return None


rng = np.random.default_rng(7)
second = np.repeat(np.arange(10), 600)
cluster = rng.integers(CLUSTERS, size=len(second))
angle = 2 * np.pi * (cluster / CLUSTERS + second / 60)
points = {"x": 5 * np.cos(angle) + rng.normal(size=len(second)), "y": 5 * np.sin(angle) + rng.normal(size=len(second))}
table = tm.from_dict({"s": second, **points}).select("x", "y", at=tm.col("s").cast("timestamp[s]")).collect()

stream = tm.stream.from_table(table, time="at", rows_per_batch=100)
window = tm.stream.window(tm.stream.tumbling("1s"), on="at")
schema = {"second": "int64", "cluster": "int64", "x": "float64", "y": "float64"}
centers = stream.bsp(follow, schema, window=window, merge=lambda states: states[0])


def show(rows):
    for row in rows.to_pylist():
        print(f"second {row['second']}: center {row['cluster']} at ({row['x']:5.2f}, {row['y']:5.2f})", flush=True)


centers.write_stream(show)

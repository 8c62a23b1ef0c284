"""A graph of applications in one job: a stream, a query, and a solver, each on a group of the workers.

tidemill run -n 3 examples/applications.py
A stream counts clicks by window, a query averages a table of prices by product, and a solver fits a model to both. The first
two run at the same time, and the placement gives each its own workers. The solver needs their results, and gets the workers
of both. Rows go from program to program in memory, and each runs as soon as it has its input.
"""

from datetime import datetime, timedelta

import numpy as np
import tidemill as tm

PRODUCTS = 12


def clicks(out, context):
    """Count a stream's rows by product and minute; each window flows on as soon as it ends."""
    start = datetime(2026, 1, 1)
    rows = [{"at": start + timedelta(seconds=s), "product": s * s % PRODUCTS} for s in range(3600)]
    with tm.group(context.comm):
        stream = tm.stream.from_table(tm.from_pylist(rows).collect(), time="at")
        minute = tm.stream.window(tm.stream.tumbling("1m"), on="at")
        counted = stream.group_by(minute, "product").agg(clicks=tm.count())
        counted.select("product", "clicks").write_stream(out.send)


def prices(out, context):
    """Average prices by product with a query."""
    numbers = np.arange(10_000)
    with tm.group(context.comm):
        table = tm.from_dict({"product": numbers % PRODUCTS, "price": 5 + numbers % PRODUCTS + numbers % 7})
        averages = table.group_by("product").agg(price=tm.col("price").mean()).collect()
    if context.copy == 0:
        out.send(averages)


def fit(counts, averages, context):
    """Fit clicks = a + b * price: copies share the products, and add up their parts of the normal equations."""
    clicks = np.zeros(PRODUCTS)
    for table in counts:
        columns = table.to_numpy()
        np.add.at(clicks, columns["product"], columns["clicks"])
    price = np.zeros(PRODUCTS)
    for table in averages:
        columns = table.to_numpy()
        price[columns["product"]] = columns["price"]
    mine = np.arange(context.copy, PRODUCTS, context.copies)
    rows = np.stack([np.ones(len(mine)), price[mine]], axis=1)
    normal = context.comm.allreduce(np.concatenate([rows.T @ rows, (rows.T @ clicks[mine])[:, None]], axis=1))
    a, b = np.linalg.solve(normal[:, :2], normal[:, 2])
    return round(float(a), 2), round(float(b), 2)


graph = tm.Graph("applications")
stream = graph.source("clicks", clicks, schema={"product": "int64", "clicks": "int64"}, comm=True)
query = graph.source("prices", prices, schema={"product": "int64", "price": "float64"}, comm=True, cores=2)
model = graph.sink("model", fit, inputs=["counts", "averages"], comm=True)
graph.connect(stream, model["counts"], tm.exchange.broadcast())
graph.connect(query, model["averages"], tm.exchange.broadcast())

job = tm.init()
result = graph.run(placement="applications")
if job.rank == 0:
    print(graph.explain(placement="applications"), end="")
    print("clicks = {} - {} * price".format(*np.abs(result["model"][0])))

"""Who matters among people who meet: PageRank and groups in a network whose links come and go.

tidemill run -n 2 examples/live_network.py

People meet at random, mostly within their circle; a link lasts from a meeting for eight seconds. The step computes results after
each second, while another thread asks for the newest values, as a page or a service would.
"""

import threading

import numpy as np
import tidemill as tm

PEOPLE, CIRCLES, SECONDS, LASTS = 60, 3, 20, 8


def meetings() -> tm.Table:
    """Each meeting twice: when it adds a link, and when it removes it."""
    rng = np.random.default_rng(1)
    second = np.repeat(np.arange(SECONDS), 30)
    one = rng.integers(PEOPLE, size=len(second))
    # In their own circle, but for some meetings of the first seconds. In one circle person 0 is seen more often than others.
    across = (rng.random(len(one)) < 0.1) & (second < 10)
    other = (one + CIRCLES * rng.integers(1, PEOPLE // CIRCLES, size=len(one)) + across) % PEOPLE
    other[(rng.random(len(one)) < 0.3) & (one % CIRCLES == 0)] = 0
    rows = {
        "one": np.concatenate([one, one]),
        "other": np.concatenate([other, other]),
        "op": np.repeat(["add", "remove"], len(one)),
        "s": np.concatenate([second, second + LASTS]),
    }
    kept = rows["s"] < SECONDS
    rows = {name: values[kept] for name, values in rows.items()}
    return tm.from_dict(rows).select("one", "other", "op", at=tm.col("s").cast("timestamp[s]")).collect()


def main() -> None:
    job = tm.init()
    stream = tm.stream.from_table(meetings(), time="at", rows_per_s=2000)
    followed = tm.networks.follow(
        stream, "one", "other", op="op", every="1s", on="at", directed=False, self_loops="drop", root=0
    )
    newest = tm.networks.LiveValues()
    done = threading.Event()

    def ask() -> None:
        asked = 0
        while not done.wait(0.05):
            asked += newest.get(0) is not None
        print("another thread got answers meanwhile" if asked else "it was over too soon to ask")

    asking = threading.Thread(target=ask)
    if job.rank == 0:
        asking.start()
    followed.write_stream(newest)
    done.set()
    if job.rank == 0:
        asking.join()
        groups = {row["component"] for row in newest.to_dict().values()}
        print(f"after second {newest.round}: {len(newest)} people in {len(groups)} groups")
        print(f"the most important: {newest.top(1)[0][0]}, with {newest[0]['degree']} meetings")


main()

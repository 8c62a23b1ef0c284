"""The Yahoo benchmark with Tidemill: JSON from files, joined with a table that is in Redis, counted in windows, into Redis.

    yahoo_worker.py PORT PREFIX FOLDER FILE...

What is printed: see `yahoo.py`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import redis
import tidemill as tm

WINDOW_S = 10
#: Of the events' seven fields; the others are passed over.
SCHEMA = {"ad_id": "str", "event_type": "str", "event_time": "timestamp[ms]"}


def main() -> None:
    port, prefix, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    url = f"redis://127.0.0.1:{port}/0"
    job = tm.init()
    with redis.Redis(port=port, decode_responses=True) as client:
        ads = client.hgetall(f"{prefix}ads")
    campaigns = tm.from_dict({"ad_id": list(ads), "campaign": list(ads.values())})
    events = tm.stream.from_files(Path(sys.argv[4]).parent, SCHEMA, time="event_time", stop_at_end=True)
    views = events.filter(tm.col("event_type") == "view").select("ad_id", "event_time").join(campaigns, on="ad_id")
    seen = views.group_by("campaign", tm.stream.window(tm.stream.tumbling(WINDOW_S), on="event_time")).agg(
        seen=tm.count()
    )
    rows = seen.select("campaign", "seen", start=tm.col("window_start").cast("timestamp[ms]").cast("int64"))
    sink = tm.stream.to_redis(url, id=f"{prefix}counts", key=["campaign", "start"], prefix=f"{prefix}count:")

    # Threads, and connections between the workers, are there before.
    tm.stream.from_generator(0, rows=10).write_stream(lambda rows: None)
    job.comm.barrier()
    begin = time.perf_counter()
    rows.write_stream(sink, name="yahoo", checkpoint=tm.stream.Checkpoint(folder / "counts", interval="1s"))
    elapsed_s = time.perf_counter() - begin
    times = job.comm.gather(elapsed_s)
    if job.rank == 0:
        print(json.dumps({"elapsed_s": max(times)}), flush=True)


main()

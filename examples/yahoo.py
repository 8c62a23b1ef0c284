"""Counts views of advertisements by campaign in windows of ten seconds, from JSON into Redis: the benchmark of

    S. Chintapalli et al.: Benchmarking Streaming Computation Engines: Storm, Flink and Spark Streaming. 2016 IEEE International
    Parallel and Distributed Processing Symposium Workshops.

python examples/yahoo.py --redis redis://127.0.0.1:6379/0
tidemill run -n 4 examples/yahoo.py --redis URL --kafka HOST:PORT       on four workers, events by way of Kafka

With ``tidemill run --restarts 1`` and --checkpoint DIR, a folder that all workers share, a job that fails resumes where it was.

It writes the campaign of each advertisement to Redis, and reads this back as a table. Events are generated from their numbers, so
every run has the same ones; with --kafka they are written to a topic, and read from there. The job parses them, keeps views,
looks up their campaigns, and writes a hash for each campaign and window, ``yahoo:count:CAMPAIGN:START``, each exactly once. Then it
counts all events again without windows or joins, and compares every hash.

Needs the Python packages redis and pyarrow. The exit code is 1 if a count is wrong.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json
import redis
import tidemill as tm

CAMPAIGNS, ADS_OF_EACH = 100, 10
WINDOW_S = 10
SCHEMA = {
    "user_id": "str",
    "page_id": "str",
    "ad_id": "str",
    "ad_type": "str",
    "event_type": "str",
    "event_time": "timestamp[ms]",
    "ip_address": "str",
}
#: The types that pyarrow reads them with.
ARROW = pa.schema([(name, pa.timestamp("ms") if type_ != "str" else pa.string()) for name, type_ in SCHEMA.items()])

#: The event of a number, as JSON; it looks random.
EVENT = f"""
    select time, concat(
        '{{"user_id": "user', key % 100000,
        '", "page_id": "page', key / 100000 % 1000,
        '", "ad_id": "ad', key / 100000000 % {CAMPAIGNS * ADS_OF_EACH},
        '", "ad_type": "', split_part('banner,modal,sponsored-search,mail,mobile', ',', key % 5 + 1),
        '", "event_type": "', split_part('view,click,purchase', ',', key / 1000 % 3 + 1),
        '", "event_time": "', cast(arrow_cast(time, 'Timestamp(Millisecond, None)') as varchar),
        '", "ip_address": "10.0.', key / 1000 % 256, '.', key / 256000 % 256, '"}}') as value
    from numbers
"""


def generated(options: argparse.Namespace, splits: int, rate: float = 0) -> tm.DataSet:
    """A stream of events: when each was, and its JSON."""
    numbers = tm.stream.from_generator(rate, rows=options.events, splits=splits, step=options.step, keys=1 << 62)
    return tm.sql(EVENT, numbers=numbers)


def parsed(events: tm.DataSet) -> tm.DataSet:
    def parse(batch: pa.RecordBatch) -> pa.Table:
        lines = "\n".join(batch.column("value").to_pylist())
        # The job's own threads do the work.
        reading = pyarrow.json.ReadOptions(use_threads=False)
        options = pyarrow.json.ParseOptions(explicit_schema=ARROW)
        return pyarrow.json.read_json(pa.BufferReader(lines.encode()), reading, options)

    # The engine does not see the time in the events' text, so this column in whole milliseconds is the stream's time.
    return events.map_batches(parse, SCHEMA).with_columns(event_time=tm.stream.bounded_delay("event_time", "1ms"))


def through_kafka(events: tm.DataSet, servers: str, topic: str, checkpoint: Path) -> tm.DataSet:
    """The same events, written into a topic, once, and read from there."""
    sink = tm.stream.to_kafka(servers, topic, id=topic, value="value")
    events.write_stream(sink, name="yahoo-events", checkpoint=tm.stream.Checkpoint(checkpoint, interval="1s"))
    return tm.stream.from_kafka(servers, topic, SCHEMA, time="event_time", stop_at_end=True)


def counts(events: tm.DataSet, ads: tm.DataSet) -> tm.DataSet:
    """A row for each campaign and window: the query of the benchmark."""
    views = events.filter(tm.col("event_type") == "view").select("ad_id", "event_time").join(ads, on="ad_id")
    seen = views.group_by("campaign", tm.stream.window(tm.stream.tumbling(WINDOW_S), on="event_time")).agg(
        seen=tm.count()
    )
    return seen.select("campaign", "seen", start=tm.col("window_start").dt.format("%Y-%m-%dT%H:%M:%S"))


def write_ads(client: Any, prefix: str) -> None:
    """The map of ads to campaigns; what a former run has counted is removed."""
    for old in client.scan_iter(f"{prefix}count:*", count=1000):
        client.delete(old)
    ads = {f"ad{number}": f"campaign{number // ADS_OF_EACH}" for number in range(CAMPAIGNS * ADS_OF_EACH)}
    client.hset(f"{prefix}ads", mapping=ads)


def expected(events: tm.DataSet, campaign_of: dict[str, str]) -> Counter[str]:
    """How many views there are by campaign and window, of the events that this worker makes."""
    found: list[Counter[str]] = []

    def count(table: tm.Table) -> None:
        seen: Counter[str] = Counter()
        for text in table.to_dict()["value"]:
            event = json.loads(text)
            if event["event_type"] == "view":
                at = datetime.fromisoformat(event["event_time"])
                start = at.replace(second=at.second // WINDOW_S * WINDOW_S, microsecond=0)
                seen[f"{campaign_of[event['ad_id']]}:{start.isoformat()}"] += 1
        found.append(seen)

    events.write_stream(count)
    return sum(found, Counter())


def difference(client: Any, prefix: str, right: Counter[str]) -> str:
    """Say which count is wrong, missing or too many."""
    keys = [key[len(f"{prefix}count:") :] for key in client.scan_iter(f"{prefix}count:*", count=1000)]
    for key in sorted({*keys, *right}):
        seen = client.hget(f"{prefix}count:{key}", "seen")
        if seen != str(right[key]):
            return f"{key} is {seen}, not {right[key]}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description="Count views of advertisements by campaign, from JSON into Redis.")
    parser.add_argument("--redis", required=True, metavar="URL", help="redis://HOST:PORT/NUMBER")
    parser.add_argument("--kafka", metavar="SERVERS", help="write events into Kafka first, and read them from there")
    parser.add_argument("--topic", default="yahoo-events", help="a topic that is empty (default yahoo-events)")
    parser.add_argument("--events", type=int, default=100_000, metavar="N", help="how many (default 100000)")
    parser.add_argument("--step", default="1ms", metavar="TIME", help="event time between two (default 1ms)")
    parser.add_argument("--rate", type=float, default=0, metavar="X", help="events in a second (default: as they go)")
    parser.add_argument("--prefix", default="yahoo:", help="what keys begin with (default yahoo:)")
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="go on from here (default: a new folder)")
    options = parser.parse_args()

    job = tm.init()
    client = redis.Redis.from_url(options.redis, decode_responses=True)
    prefix, folder, ads = options.prefix, options.checkpoint, None
    if job.rank == 0:
        # A job that resumes keeps its counts.
        if folder is None or not folder.exists():
            write_ads(client, prefix)
        folder = folder or Path(tempfile.mkdtemp(prefix="yahoo-"))
        ads = client.hgetall(f"{prefix}ads")
    folder, ads = job.comm.bcast((folder, ads))
    campaigns = tm.from_dict({"ad_id": list(ads), "campaign": list(ads.values())})

    if options.kafka:
        # Made by one task, so every partition has its events in order.
        made = generated(options, 1, options.rate)
        events = through_kafka(made, options.kafka, options.topic, folder / "events")
    else:
        events = parsed(generated(options, 4 * job.size, options.rate))
    sink = tm.stream.to_redis(options.redis, id=f"{prefix}counts", key=["campaign", "start"], prefix=f"{prefix}count:")
    begin = time.perf_counter()
    counts(events, campaigns).write_stream(
        sink, name="yahoo", checkpoint=tm.stream.Checkpoint(folder / "counts", interval="1s")
    )
    seconds = time.perf_counter() - begin

    right = sum(job.comm.allgather(expected(generated(options, 4 * job.size), ads)), Counter())
    wrong = ""
    if job.rank == 0:
        wrong = difference(client, prefix, right)
        if options.checkpoint is None:
            shutil.rmtree(folder)
        print(f"{options.events:,} events in {seconds:.3f} s, {options.events / seconds:,.0f} events/s")
        print(f"wrong: {wrong}" if wrong else f"{len(right):,} counts of {right.total():,} views, all right")
    return 1 if job.comm.bcast(wrong) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Windows with Bytewax: a keyed count in tumbling windows of event time, on one worker.

    windows_bytewax.py throughput|latency EVENTS PER_SECOND

The modes, the events and what is printed: see `harness/windows.py`. One worker, since two are slower: as processes they pickle every
event that goes from one to the other, as threads they share an interpreter. Bytewax's watermarks are of each key, and go on with the
system's clock; so the events of a paced stream have the times when they are due, from a whole second on. While events come as fast as
they go the clock stands still: each key's own events close its windows.
"""

from __future__ import annotations

import gc
import sys
import time
from datetime import datetime, timedelta, timezone

import bytewax.operators as op
import numpy as np
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.operators.windowing import EventClock, TumblingWindower, count_window
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import cluster_main
from windows_events import KEYS, LATENESS_MS, WINDOW_MS, events, report

BATCH = 100_000  # events that a source gives at a time when it goes as fast as it can
# An event is late when it is older than the newest of its key and the time since: on its way through the system it must have room, too.
WAY_MS = 50
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
Item = tuple[str, datetime]
Result = tuple[str, tuple[int, int]]  # key; number of the window and count

closed_ns: dict[int, int] = {}
arrived_ns: dict[int, int] = {}
rows: list[tuple[int, int, int]] = []
times_s = {"begin": 0.0, "end": 0.0}


class Source(DynamicSource[Item], StatelessSourcePartition[Item]):
    def __init__(self, paced: bool, count: int, per_second: int) -> None:
        self.paced, self.per_second = paced, per_second
        keys, times = events(np.arange(count), per_second)
        names = [str(key) for key in range(KEYS)]
        # Once the events are made.
        self.origin_s = int(time.time()) + 2 + count // 500_000 if paced else 0
        origin = EPOCH + timedelta(seconds=self.origin_s)
        moments = [origin + timedelta(milliseconds=at) for at in range(times.max() + 1)]
        self.made = [(names[key], moments[at]) for key, at in zip(keys.tolist(), times.tolist(), strict=True)]
        self.latest = np.maximum.accumulate(times)
        self.sent, self.next_end = 0, WINDOW_MS
        gc.freeze()  # else the collector would look at them again and again

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Source:
        return self

    def next_batch(self) -> list[Item]:
        if self.sent == 0 and not times_s["begin"]:
            time.sleep(max(0.0, self.origin_s - time.time()))
            times_s["begin"] = time.monotonic()
        if self.sent == len(self.made):
            raise StopIteration()
        end = self.sent + BATCH
        if self.paced:
            end = int((time.monotonic() - times_s["begin"]) * self.per_second)
        batch = self.made[self.sent : end]
        self.sent += len(batch)
        while self.sent and self.latest[self.sent - 1] - LATENESS_MS >= self.next_end:
            closed_ns[self.next_end - WINDOW_MS] = time.monotonic_ns()
            self.next_end += WINDOW_MS
        return batch  # after an empty one the next is asked for in a millisecond


class Sink(DynamicSink[Result], StatelessSinkPartition[Result]):
    def build(self, step_id: str, worker_index: int, worker_count: int) -> Sink:
        return self

    def write_batch(self, items: list[Result]) -> None:
        now_ns = time.monotonic_ns()
        times_s["end"] = now_ns / 1e9
        for key, (window, count) in items:
            rows.append((window * WINDOW_MS, int(key), count))
            arrived_ns[window * WINDOW_MS] = now_ns


def main() -> None:
    source = Source(sys.argv[1] == "latency", int(sys.argv[2]), int(sys.argv[3]))
    if source.paced:
        clock = EventClock(lambda item: item[1], timedelta(milliseconds=LATENESS_MS + WAY_MS))
    else:
        clock = EventClock(lambda item: item[1], timedelta(milliseconds=LATENESS_MS), lambda: EPOCH, lambda _: None)
    flow = Dataflow("windows")
    windower = TumblingWindower(timedelta(milliseconds=WINDOW_MS), EPOCH + timedelta(seconds=source.origin_s))
    counted = count_window("count", op.input("events", flow, source), clock, windower, lambda item: item[0])
    op.output("rows", counted.down, Sink())
    cluster_main(flow, [], 0, worker_count_per_proc=1)
    print(report(times_s["end"] - times_s["begin"], rows, closed_ns, arrived_ns), flush=True)


main()

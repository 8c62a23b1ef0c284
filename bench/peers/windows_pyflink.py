"""Windows with PyFlink: the same as `WindowsFlink.java` between its sources and sinks, whose functions are in Python.

    windows_pyflink.py throughput|latency EVENTS PER_SECOND

The compiled classes must be where HADOOP_CLASSPATH says: PyFlink puts it on the path of its JVM. Functions run on the task manager's
threads, in one Python within that JVM (`python.execution-mode: thread`), so all is one process here, too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from pyflink.common import Configuration, Row, Time, Types
from pyflink.datastream import DataStream, StreamExecutionEnvironment
from pyflink.datastream.functions import AggregateFunction, ProcessWindowFunction
from pyflink.datastream.window import TumblingEventTimeWindows
from pyflink.java_gateway import get_gateway

WARM_UP_EVENTS, PACED_WARM_UP_S = 300_000, 3
SETTLE_MS = 3000  # sources wait for functions, which are ready later than the sinks that they can see


class Count(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


class ToRow(ProcessWindowFunction):
    def process(self, key: int, context: Any, elements: Iterable[int]) -> Iterator[Row]:
        for count in elements:
            yield Row(context.window().start, key, count)


def run(paced: bool, count: int, per_second: int) -> None:
    settings = Configuration()
    settings.set_string("python.execution-mode", "thread")
    # The Python within the JVM does not find by itself what is installed beside this one.
    settings.set_string("python.executable", sys.executable)
    settings.set_string("python.pythonpath", next(path for path in sys.path if path.endswith("site-packages")))
    env = StreamExecutionEnvironment.get_execution_environment(settings)
    java = get_gateway().jvm.WindowsFlink
    keys = DataStream(java.keys(env._j_stream_execution_environment, paced, count, per_second, SETTLE_MS))
    counted = (
        keys.key_by(lambda key: key, Types.LONG())
        .window(TumblingEventTimeWindows.of(Time.seconds(1)))
        .aggregate(
            Count(),
            ToRow(),
            accumulator_type=Types.LONG(),
            output_type=Types.ROW([Types.LONG(), Types.LONG(), Types.LONG()]),
        )
    )
    java.collect(counted._j_data_stream)
    env.execute()


def main() -> None:
    paced, count, per_second = sys.argv[1] == "latency", int(sys.argv[2]), int(sys.argv[3])
    run(False, WARM_UP_EVENTS, WARM_UP_EVENTS // 10)
    if paced:
        run(True, PACED_WARM_UP_S * per_second, per_second)
    run(paced, count, per_second)
    print(get_gateway().jvm.WindowsFlink.report(), flush=True)


main()

/* Windows with Apache Flink: a keyed count in tumbling windows of event time, by the DataStream API and by SQL.
 *
 *   java -cp CLASSES:JARS WindowsFlink datastream|sql throughput|latency EVENTS PER_SECOND
 *
 * The modes, the events and what is printed: see `harness/windows.py`. A mini-cluster of one task manager with two slots, each with a
 * source, windows and a sink; all is one process, so that its clock and its counts are everybody's. A source is a loop that the job's
 * only elements start: it takes no lock for each event, and gives watermarks itself. With the DataStream API an event is its key,
 * with the time as Flink's own timestamp; with SQL a row of both in Flink's internal form. `windows_pyflink.py` has the same sources
 * and sinks around functions in Python. */
import java.io.IOException;
import java.util.Map;
import java.util.Queue;
import java.util.TreeMap;
import java.util.concurrent.BrokenBarrierException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Collectors;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.JobManagerOptions;
import org.apache.flink.configuration.TaskManagerOptions;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.operators.AbstractStreamOperator;
import org.apache.flink.streaming.api.operators.OneInputStreamOperator;
import org.apache.flink.streaming.api.watermark.Watermark;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.TimestampData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.types.Row;
import org.apache.flink.util.Collector;

@SuppressWarnings({"serial", "try"}) // functions travel only within this program, which nobody interrupts
public final class WindowsFlink {
    static final int SLOTS = 2, KEYS = 1000, WINDOW_MS = 1000, LATENESS_MS = 100, DRAWN = 1 << 20;
    static final int BATCH = 1000; // events of a source between watermarks, when it goes as fast as it can
    static final long TICK_NS = 1_000_000; // and when it keeps a pace
    static final int WARM_UPS = 5; // the JIT compiler still gains after the third job
    static final long WARM_UP_EVENTS = 10_000_000, PACED_WARM_UP_S = 3;
    static final String QUERY = """
            SELECT CAST(TIMESTAMPDIFF(SECOND, TIMESTAMP '1970-01-01 00:00:00', window_start) AS BIGINT) * 1000, k, COUNT(*)
            FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(t), INTERVAL '1' SECOND))
            GROUP BY window_start, window_end, k""";

    // Of the job that runs. Times are of the clock that Python calls `monotonic`.
    static CyclicBarrier begin; // sources and sinks meet here
    static volatile long startNs, endNs;
    static long settleMs = 0; // for functions that may not be ready when the sinks are
    static final Map<Long, Long> closedNs = new ConcurrentHashMap<>(); // when the last source's watermark passed a window, by its start
    static final Map<Long, Long> arrivedNs = new ConcurrentHashMap<>(); // when its last row came
    static final Queue<long[]> rows = new ConcurrentLinkedQueue<>(); // start of a window, key, count

    static void waitForAll() throws IOException {
        try {
            begin.await();
        } catch (InterruptedException | BrokenBarrierException error) {
            throw new IOException(error);
        }
    }

    static long mix(long number) {
        long z = number * 0x9E3779B97F4A7C15L;
        z = (z ^ (z >>> 30)) * 0xBF58476D1CE4E5B9L;
        z = (z ^ (z >>> 27)) * 0x94D049BB133111EBL;
        return z ^ (z >>> 31);
    }

    /** Random bits of an event, which come again and again. */
    static long drawn(long number) {
        return mix(number % DRAWN + 1);
    }

    static long key(long number) {
        return (drawn(number) & 0xFFFFFFFFL) % KEYS;
    }

    static long timeMs(long number, long perSecond) {
        return number * 1000 / perSecond + LATENESS_MS - (drawn(number) >>> 32) % (LATENESS_MS + 1);
    }

    /** How a source puts key and time into an element. */
    interface Maker<T> extends java.io.Serializable {
        T make(long key, long timeMs);
    }

    static final class KeyMaker implements Maker<Long> {
        private final Long[] boxes = new Long[KEYS];

        KeyMaker() {
            for (int key = 0; key < KEYS; key++) boxes[key] = (long) key;
        }

        @Override
        public Long make(long key, long timeMs) {
            return boxes[(int) key];
        }
    }

    static final class RowMaker implements Maker<RowData> {
        private transient GenericRowData row;

        @Override
        public RowData make(long key, long timeMs) {
            if (row == null) row = new GenericRowData(2);
            row.setField(0, key);
            row.setField(1, TimestampData.fromEpochMillis(timeMs));
            return row;
        }
    }

    /** Sends all events of one source when the one element comes that starts it. */
    static final class Source<T> extends AbstractStreamOperator<T> implements OneInputStreamOperator<Integer, T> {
        final boolean paced;
        final long events, perSecond;
        final Maker<T> maker;

        Source(boolean paced, long events, long perSecond, Maker<T> maker) {
            this.paced = paced;
            this.events = events;
            this.perSecond = perSecond;
            this.maker = maker;
        }

        @Override
        public void processElement(StreamRecord<Integer> start) throws Exception {
            int index = getRuntimeContext().getTaskInfo().getIndexOfThisSubtask();
            int own = (int) ((events - index + SLOTS - 1) / SLOTS);
            // Paced events are too many to be kept; they are made when they are due.
            long[] keys = new long[paced ? 0 : own], times = new long[keys.length];
            for (int nth = 0; nth < keys.length; nth++) {
                keys[nth] = key((long) nth * SLOTS + index);
                times[nth] = timeMs((long) nth * SLOTS + index, perSecond);
            }
            waitForAll();
            Thread.sleep(settleMs);
            long beginNs = System.nanoTime(), latestMs = 0, nextEndMs = WINDOW_MS;
            if (index == 0) startNs = beginNs;
            StreamRecord<T> record = new StreamRecord<>(null);
            for (int sent = 0; sent < own; ) {
                long nowNs = System.nanoTime();
                long due = (long) ((nowNs - beginNs) / 1e9 * perSecond);
                int end = paced ? (int) Math.min(own, (due - index + SLOTS - 1) / SLOTS) : Math.min(own, sent + BATCH);
                for (; sent < end; sent++) {
                    long number = (long) sent * SLOTS + index;
                    long key = paced ? key(number) : keys[sent], time = paced ? timeMs(number, perSecond) : times[sent];
                    output.collect(record.replace(maker.make(key, time), time));
                    latestMs = Math.max(latestMs, time);
                }
                long passedMs = latestMs - LATENESS_MS;
                for (; nextEndMs <= passedMs; nextEndMs += WINDOW_MS) closedNs.merge(nextEndMs - WINDOW_MS, System.nanoTime(), Math::max);
                output.emitWatermark(new Watermark(passedMs - 1));
                if (paced) LockSupport.parkNanos(nowNs + TICK_NS - System.nanoTime());
            }
        }
    }

    static final class Count implements AggregateFunction<Long, Long, Long> {
        @Override
        public Long createAccumulator() {
            return 0L;
        }

        @Override
        public Long add(Long key, Long count) {
            return count + 1;
        }

        @Override
        public Long getResult(Long count) {
            return count;
        }

        @Override
        public Long merge(Long one, Long other) {
            return one + other;
        }
    }

    static final class ToRow extends ProcessWindowFunction<Long, Row, Long, TimeWindow> {
        @Override
        public void process(Long key, Context context, Iterable<Long> counts, Collector<Row> out) {
            out.collect(Row.of(context.window().getStart(), key, counts.iterator().next()));
        }
    }

    static final class Collect implements Sink<Row> {
        @Override
        public SinkWriter<Row> createWriter(WriterInitContext context) throws IOException {
            waitForAll();
            return new SinkWriter<Row>() {
                @Override
                public void write(Row row, Context context) {
                    long start = (Long) row.getField(0);
                    rows.add(new long[] {start, (Long) row.getField(1), (Long) row.getField(2)});
                    arrivedNs.merge(start, System.nanoTime(), Math::max);
                }

                @Override
                public void flush(boolean endOfInput) {
                    if (endOfInput) endNs = System.nanoTime();
                }

                @Override
                public void close() {}
            };
        }
    }

    /** Makes ready for a job, and gives what its sources do. */
    static <T> DataStream<T> sources(
            StreamExecutionEnvironment env, boolean paced, long events, long perSecond, Maker<T> maker, TypeInformation<T> type) {
        begin = new CyclicBarrier(2 * SLOTS);
        closedNs.clear();
        arrivedNs.clear();
        rows.clear();
        env.setParallelism(SLOTS);
        env.getConfig().enableObjectReuse();
        // Buffers leave when they are full; paced ones with each tick.
        env.setBufferTimeout(paced ? 1 : -1);
        return env.fromData(0, 1).rebalance() // one element to each source
                .transform("source", type, new Source<>(paced, events, perSecond, maker));
    }

    /** For functions in Python: events as their keys, with timestamps and watermarks. */
    public static DataStream<Long> keys(StreamExecutionEnvironment env, boolean paced, long events, long perSecond, long settleMs) {
        WindowsFlink.settleMs = settleMs;
        return sources(env, paced, events, perSecond, new KeyMaker(), Types.LONG);
    }

    public static void collect(DataStream<Row> counted) {
        counted.sinkTo(new Collect());
    }

    static DataStream<Row> count(StreamExecutionEnvironment env, String api, boolean paced, long events, long perSecond) {
        if (api.equals("datastream"))
            return sources(env, paced, events, perSecond, new KeyMaker(), Types.LONG)
                    .keyBy(key -> key, Types.LONG)
                    .window(TumblingEventTimeWindows.of(java.time.Duration.ofMillis(WINDOW_MS)))
                    .aggregate(new Count(), new ToRow());
        StreamTableEnvironment tables = StreamTableEnvironment.create(env);
        RowType type = (RowType) DataTypes.ROW(
                DataTypes.FIELD("k", DataTypes.BIGINT().notNull()),
                DataTypes.FIELD("t", DataTypes.TIMESTAMP(3).notNull())).notNull().getLogicalType();
        DataStream<RowData> made = sources(env, paced, events, perSecond, new RowMaker(), InternalTypeInfo.of(type));
        Schema schema = Schema.newBuilder()
                .column("k", DataTypes.BIGINT().notNull())
                .column("t", DataTypes.TIMESTAMP(3).notNull())
                .watermark("t", "SOURCE_WATERMARK()")
                .build();
        tables.createTemporaryView("events", made, schema);
        return tables.toDataStream(tables.sqlQuery(QUERY));
    }

    static void run(MiniCluster cluster, String api, boolean paced, long events, long perSecond) throws Exception {
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment();
        collect(count(env, api, paced, events, perSecond));
        cluster.executeJobBlocking(env.getStreamGraph().getJobGraph());
    }

    /** What the last job did, as the harness wants it. */
    public static String report() {
        long digest = 0, counted = 0;
        for (long[] row : rows) {
            digest += mix(row[0] * 1000 + row[1]) * row[2];
            counted += row[2];
        }
        // The last windows are closed by the end of the input.
        String latencies = new TreeMap<>(closedNs).entrySet().stream()
                .map(closed -> String.format("%.9f", (arrivedNs.get(closed.getKey()) - closed.getValue()) / 1e9))
                .collect(Collectors.joining(", "));
        return String.format("{\"elapsed_s\": %.9f, \"counted\": %d, \"digest\": \"%s\", \"latency_s\": [%s]}",
                (endNs - startNs) / 1e9, counted, Long.toUnsignedString(digest), latencies);
    }

    static MiniCluster cluster() throws Exception {
        return cluster(new Configuration());
    }

    static MiniCluster cluster(Configuration configuration) throws Exception {
        // Nothing listens to other hosts.
        configuration.set(JobManagerOptions.BIND_HOST, "localhost");
        configuration.set(TaskManagerOptions.HOST, "localhost");
        configuration.set(TaskManagerOptions.BIND_HOST, "localhost");
        MiniCluster cluster = new MiniCluster(new MiniClusterConfiguration.Builder()
                .setConfiguration(configuration).setNumTaskManagers(1).setNumSlotsPerTaskManager(SLOTS).build());
        cluster.start();
        return cluster;
    }

    public static void main(String[] given) throws Exception {
        boolean paced = given[1].equals("latency");
        long events = Long.parseLong(given[2]), perSecond = Long.parseLong(given[3]);
        try (MiniCluster cluster = cluster()) {
            for (int i = 0; i < WARM_UPS; i++) run(cluster, given[0], false, WARM_UP_EVENTS, WARM_UP_EVENTS / 10);
            if (paced) run(cluster, given[0], true, PACED_WARM_UP_S * perSecond, perSecond);
            run(cluster, given[0], paced, events, perSecond);
            System.out.println(report());
        }
    }
}

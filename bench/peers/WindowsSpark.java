/* Windows with Spark's structured streaming: a keyed count in tumbling windows of event time, local[2].
 *
 *   spark-submit --class WindowsSpark --driver-class-path CLASSES spark-internal throughput|latency EVENTS PER_SECOND
 *
 * The modes, the events and what is printed: see `harness/windows.py`. The source is one of Spark's own kind, whose partitions are read
 * from arrays by columns. A query takes all that is there in one micro-batch, Spark's own way: as fast as it goes that is the whole input
 * (with limited batches it took several times as long). Windows do not end with the input: a last event, of which nothing comes out,
 * passes the ends of all. */
import static org.apache.spark.sql.functions.col;
import static org.apache.spark.sql.functions.count;
import static org.apache.spark.sql.functions.lit;
import static org.apache.spark.sql.functions.window;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.stream.Collectors;
import org.apache.spark.api.java.function.VoidFunction2;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.execution.vectorized.OnHeapColumnVector;
import org.apache.spark.sql.streaming.OutputMode;
import org.apache.spark.sql.streaming.StreamingQuery;
import org.apache.spark.sql.streaming.Trigger;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

@SuppressWarnings("serial") // nothing leaves this program
public final class WindowsSpark {
    static final int CORES = 2, KEYS = 1000, WINDOW_MS = 1000, LATENESS_MS = 100, DRAWN = 1 << 20;
    static final int ROWS = 4096; // of a columnar batch, Spark's own number
    static final int WARM_UPS = 4;
    static final long WARM_UP_EVENTS = 10_000_000, PACED_WARM_UP_S = 5;
    static final StructType SCHEMA = new StructType()
            .add("key", DataTypes.LongType, false).add("time", DataTypes.TimestampType, false);

    // Of the query that runs.
    static boolean paced;
    static long events, perSecond;
    static long[] keys, timesUs; // where it is not paced: paced ones are too many to be kept
    static volatile long startNs, endNs, counted;
    static final Map<Long, Long> arrivedNs = new ConcurrentHashMap<>(); // when the last row of a window came, by its start
    static final Queue<long[]> rows = new ConcurrentLinkedQueue<>(); // start of a window, key, count

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

    static long timeMs(long number) {
        long placeMs = number * 1000 / perSecond + LATENESS_MS;
        // The last one, by which all windows end.
        return number == events ? placeMs + 2 * WINDOW_MS : placeMs - (drawn(number) >>> 32) % (LATENESS_MS + 1);
    }

    public static final class Provider implements TableProvider {
        @Override
        public StructType inferSchema(CaseInsensitiveStringMap options) {
            return SCHEMA;
        }

        @Override
        public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
            return new Events();
        }
    }

    static final class Events implements Table, SupportsRead, ScanBuilder, Scan {
        @Override
        public String name() {
            return "events";
        }

        @Override
        @SuppressWarnings("deprecation")
        public StructType schema() {
            return SCHEMA;
        }

        @Override
        public Set<TableCapability> capabilities() {
            return Set.of(TableCapability.MICRO_BATCH_READ);
        }

        @Override
        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            return this;
        }

        @Override
        public Scan build() {
            return this;
        }

        @Override
        public StructType readSchema() {
            return SCHEMA;
        }

        @Override
        public MicroBatchStream toMicroBatchStream(String checkpoint) {
            return new Stream();
        }
    }

    static final class Number extends Offset {
        final long number;

        Number(long number) {
            this.number = number;
        }

        @Override
        public String json() {
            return Long.toString(number);
        }
    }

    record Range(long start, long end) implements InputPartition {}

    static final class Stream implements MicroBatchStream {
        @Override
        public Offset initialOffset() {
            return new Number(0);
        }

        @Override
        public Offset latestOffset() {
            if (startNs == 0) startNs = System.nanoTime();
            long due = paced ? (long) ((System.nanoTime() - startNs) / 1e9 * perSecond) : events;
            return new Number(due < events ? due : events + 1); // with the last
        }

        @Override
        public Offset deserializeOffset(String json) {
            return new Number(Long.parseLong(json));
        }

        @Override
        public void commit(Offset end) {}

        @Override
        public void stop() {}

        @Override
        public InputPartition[] planInputPartitions(Offset from, Offset to) {
            long start = ((Number) from).number, end = ((Number) to).number, middle = (start + end) / 2;
            return new InputPartition[] {new Range(start, middle), new Range(middle, end)};
        }

        @Override
        public PartitionReaderFactory createReaderFactory() {
            return new Readers();
        }
    }

    static final class Readers implements PartitionReaderFactory {
        @Override
        public PartitionReader<InternalRow> createReader(InputPartition range) {
            throw new UnsupportedOperationException("it reads by columns");
        }

        @Override
        public boolean supportColumnarReads(InputPartition range) {
            return true;
        }

        @Override
        public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition range) {
            return new Reader((Range) range);
        }
    }

    static final class Reader implements PartitionReader<ColumnarBatch> {
        private final OnHeapColumnVector[] columns = OnHeapColumnVector.allocateColumns(ROWS, SCHEMA);
        private final ColumnarBatch batch = new ColumnarBatch(new ColumnVector[] {columns[0], columns[1]});
        private final long end;
        private long next;

        Reader(Range range) {
            next = range.start();
            end = range.end();
        }

        @Override
        public boolean next() {
            int count = (int) Math.min(ROWS, end - next);
            if (paced) {
                for (int i = 0; i < count; i++) {
                    columns[0].putLong(i, key(next + i));
                    columns[1].putLong(i, timeMs(next + i) * 1000);
                }
            } else {
                columns[0].putLongs(0, count, keys, (int) next);
                columns[1].putLongs(0, count, timesUs, (int) next);
            }
            batch.setNumRows(count);
            next += count;
            return count > 0;
        }

        @Override
        public ColumnarBatch get() {
            return batch;
        }

        @Override
        public void close() {
            batch.close();
        }
    }

    static void arrived(Dataset<Row> batch) {
        List<Row> found = batch.collectAsList();
        long nowNs = System.nanoTime();
        for (Row row : found) {
            long startMs = row.getStruct(0).getTimestamp(0).getTime();
            rows.add(new long[] {startMs, row.getLong(1), row.getLong(2)});
            arrivedNs.put(startMs, nowNs);
            counted += row.getLong(2);
            endNs = nowNs;
        }
    }

    static void run(SparkSession spark, boolean isPaced, long eventCount, long eventsPerSecond) throws Exception {
        paced = isPaced;
        events = eventCount;
        perSecond = eventsPerSecond;
        int kept = paced ? 0 : (int) events + 1;
        keys = new long[kept];
        timesUs = new long[kept];
        for (int i = 0; i < kept; i++) {
            keys[i] = key(i);
            timesUs[i] = timeMs(i) * 1000;
        }
        startNs = endNs = counted = 0;
        arrivedNs.clear();
        rows.clear();
        Path checkpoint = Files.createTempDirectory("windows");
        StreamingQuery query = spark.readStream().format(Provider.class.getName()).load()
                .withWatermark("time", LATENESS_MS + " milliseconds")
                .groupBy(window(col("time"), WINDOW_MS + " milliseconds"), col("key"))
                .agg(count(lit(1)))
                .writeStream()
                .outputMode(OutputMode.Append())
                .trigger(Trigger.ProcessingTime(0))
                .option("checkpointLocation", checkpoint.toString())
                .foreachBatch((VoidFunction2<Dataset<Row>, Long>) (batch, id) -> arrived(batch))
                .start();
        while (counted < events && query.isActive()) Thread.sleep(10);
        query.stop();
        query.awaitTermination();
        try (var files = Files.walk(checkpoint)) {
            for (Path path : files.sorted(Comparator.reverseOrder()).toList()) Files.delete(path);
        }
    }

    /** When the first event came that lets the watermark pass each window: Spark has no moment when a source gives one. */
    static Map<Long, Long> closedNs() {
        Map<Long, Long> found = new TreeMap<>();
        long nextEndMs = WINDOW_MS;
        for (long number = 0; paced && number < events; number++) {
            for (; timeMs(number) - LATENESS_MS >= nextEndMs; nextEndMs += WINDOW_MS)
                found.put(nextEndMs - WINDOW_MS, startNs + (long) (number * 1e9 / perSecond));
        }
        return found;
    }

    static String report() {
        long digest = 0;
        for (long[] row : rows) digest += mix(row[0] * 1000 + row[1]) * row[2];
        String latencies = closedNs().entrySet().stream()
                .map(closed -> String.format("%.9f", (arrivedNs.get(closed.getKey()) - closed.getValue()) / 1e9))
                .collect(Collectors.joining(", "));
        return String.format("{\"elapsed_s\": %.9f, \"counted\": %d, \"digest\": \"%s\", \"latency_s\": [%s]}",
                (endNs - startNs) / 1e9, counted, Long.toUnsignedString(digest), latencies);
    }

    public static void main(String[] given) throws Exception {
        boolean measurePaced = given[0].equals("latency");
        long count = Long.parseLong(given[1]), rate = Long.parseLong(given[2]);
        SparkSession spark = SparkSession.builder().master("local[" + CORES + "]").appName("bench")
                .config("spark.driver.host", "127.0.0.1")
                .config("spark.driver.bindAddress", "127.0.0.1")
                .config("spark.sql.shuffle.partitions", CORES)
                .config("spark.sql.session.timeZone", "UTC")
                .config("spark.sql.streaming.pollingDelay", "1ms")
                .config("spark.ui.enabled", false)
                .config("spark.log.level", "ERROR")
                .getOrCreate();
        for (int i = 0; i < WARM_UPS; i++) run(spark, false, WARM_UP_EVENTS, WARM_UP_EVENTS / 10);
        if (measurePaced) run(spark, true, PACED_WARM_UP_S * rate, rate);
        run(spark, measurePaced, count, rate);
        System.out.println(report());
        spark.stop();
    }
}

/* The cost of checkpoints with Apache Flink: four sums of each key, in memory or in RocksDB.
 *
 *   java -cp CLASSES:JARS StateFlink hashmap|rocksdb cost EVERY_S KEYS HOT ROWS FOLDER
 *
 * What it does and prints: see `harness/state.py`. A mini-cluster of one task manager with two slots. The rows of all keys, which come first,
 * warm it up. What is kept of a key is an array of four numbers, changed in place, which copies least. */
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.LongStream;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.CheckpointListener;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.PrimitiveArrayTypeInfo;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.MemorySize;
import org.apache.flink.configuration.StateBackendOptions;
import org.apache.flink.configuration.TaskManagerOptions;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.streaming.api.functions.source.legacy.RichParallelSourceFunction;
import org.apache.flink.util.Collector;

@SuppressWarnings("serial") // functions travel only within this program
public final class StateFlink {
    static final int SLOTS = 2;
    static final int BATCH = 1000; // rows of a source between checkpoints that may come

    static final long[][] passedNs = new long[SLOTS][]; // when each batch of a source had gone
    static final AtomicInteger checkpoints = new AtomicInteger();
    static final AtomicLong counted = new AtomicLong();

    static final class Source extends RichParallelSourceFunction<Tuple2<Long, Long>> implements CheckpointedFunction, CheckpointListener {
        final long keys, hot, rows;
        private transient ListState<Long> saved;
        private long next = -1;
        private volatile boolean running = true;

        Source(long keys, long hot, long rows) {
            this.keys = keys;
            this.hot = hot;
            this.rows = rows;
        }

        @Override
        public void run(SourceContext<Tuple2<Long, Long>> context) {
            int index = getRuntimeContext().getTaskInfo().getIndexOfThisSubtask(), batch = 0;
            long[] passed = passedNs[index] = new long[(int) (rows / SLOTS / BATCH) + 2];
            Tuple2<Long, Long> row = new Tuple2<>();
            if (next < 0) next = index;
            while (running && next < rows) {
                synchronized (context.getCheckpointLock()) {
                    for (int sent = 0; sent < BATCH && next < rows; sent++, next += SLOTS) {
                        row.f0 = next < keys ? next : Long.remainderUnsigned(WindowsFlink.mix(next), hot);
                        row.f1 = next;
                        context.collect(row);
                    }
                }
                passed[batch++] = System.nanoTime();
            }
            passedNs[index] = Arrays.copyOf(passed, batch);
        }

        @Override
        public void cancel() {
            running = false;
        }

        @Override
        public void initializeState(FunctionInitializationContext context) throws Exception {
            saved = context.getOperatorStateStore().getListState(new ListStateDescriptor<>("next", Types.LONG));
        }

        @Override
        public void snapshotState(FunctionSnapshotContext context) throws Exception {
            saved.update(List.of(next));
        }

        @Override
        public void notifyCheckpointComplete(long number) {
            if (getRuntimeContext().getTaskInfo().getIndexOfThisSubtask() == 0) checkpoints.incrementAndGet();
        }
    }

    static final class Totals extends KeyedProcessFunction<Long, Tuple2<Long, Long>, Long> {
        private transient ValueState<long[]> state;
        private long rows = 0;

        @Override
        public void open(OpenContext context) {
            state = getRuntimeContext().getState(
                    new ValueStateDescriptor<>("totals", PrimitiveArrayTypeInfo.LONG_PRIMITIVE_ARRAY_TYPE_INFO));
        }

        @Override
        public void processElement(Tuple2<Long, Long> row, Context context, Collector<Long> out) throws Exception {
            long number = row.f1;
            long[] totals = state.value();
            if (totals == null) totals = new long[] {0, 0, number, number};
            totals[0] += 1;
            totals[1] += number;
            totals[2] = Math.min(totals[2], number);
            totals[3] = Math.max(totals[3], number);
            state.update(totals);
            rows++;
        }

        @Override
        public void close() {
            counted.addAndGet(rows);
        }
    }

    public static void main(String[] given) throws Exception {
        double everyS = Double.parseDouble(given[2]);
        long keys = Long.parseLong(given[3]), hot = Long.parseLong(given[4]), rows = Long.parseLong(given[5]);
        Configuration configuration = new Configuration();
        configuration.set(StateBackendOptions.STATE_BACKEND, given[0]);
        configuration.set(TaskManagerOptions.MANAGED_MEMORY_SIZE, MemorySize.ofMebiBytes(2048)); // RocksDB's
        if (everyS > 0) {
            configuration.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, Path.of(given[6]).toUri().toString());
            configuration.set(CheckpointingOptions.CHECKPOINTING_INTERVAL, Duration.ofMillis((long) (1000 * everyS)));
            configuration.set(CheckpointingOptions.INCREMENTAL_CHECKPOINTS, true);
        }
        try (MiniCluster cluster = WindowsFlink.cluster(configuration)) {
            StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(configuration);
            env.setParallelism(SLOTS);
            env.getConfig().enableObjectReuse();
            env.setBufferTimeout(-1); // buffers leave when they are full
            env.addSource(new Source(keys, hot, rows)).returns(Types.TUPLE(Types.LONG, Types.LONG))
                    .keyBy(row -> row.f0, Types.LONG)
                    .process(new Totals()).returns(Types.LONG)
                    .sinkTo(new DiscardingSink<>());
            cluster.executeJobBlocking(env.getStreamGraph().getJobGraph());
        }
        long[] passed = LongStream.concat(Arrays.stream(passedNs[0]), Arrays.stream(passedNs[1])).sorted().toArray();
        int from = (int) ((keys + keys / 4) / BATCH), last = passed.length - 1;
        long longestNs = 0;
        for (int i = from; i < last; i++) longestNs = Math.max(longestNs, passed[i + 1] - passed[i]);
        System.out.printf("{\"per_s\": %f, \"longest_wait_s\": %f, \"elapsed_s\": %f, \"checkpoints\": %d, \"counted\": %d}%n",
                (double) (last - from) * BATCH / ((passed[last] - passed[from]) / 1e9), longestNs / 1e9,
                (passed[last] - passed[0]) / 1e9, checkpoints.get(), counted.get());
    }
}

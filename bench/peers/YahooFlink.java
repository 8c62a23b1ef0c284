/* The Yahoo benchmark with Apache Flink: views of advertisements by campaign in windows of ten seconds, from JSON into Redis.
 *
 *   java -cp CLASSES:JARS YahooFlink PORT PREFIX FOLDER FILE...
 *
 * What it does and prints: see `harness/yahoo.py`. A mini-cluster of one task manager with two slots; each has a source, which has the
 * lines of its share of the FILEs in memory before the clock starts, and a sink with a connection of its own. JSON is read as far as it is
 * needed, by a parser that makes no objects; campaigns are asked for once by each slot, as in Yahoo's own program. */
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichFlatMapFunction;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.core.JsonFactory;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.core.JsonParser;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.core.JsonToken;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.source.legacy.RichParallelSourceFunction;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.Pipeline;

@SuppressWarnings("serial") // functions travel only within this program
public final class YahooFlink {
    static final int SLOTS = 2, WARM_UPS = 4, WINDOW_S = 10;
    static final int BATCH = 100; // events of a source between checkpoints that may come
    static final int UNANSWERED_MAX = 1000; // hashes that are written before their answers are read

    // Of the job that runs.
    static CountDownLatch ready; // of sources and sinks; where they are one thread no sink can wait for a source
    static volatile long startNs, endNs;
    static final AtomicLong views = new AtomicLong();
    static byte[][][] lines; // of each source
    static int port;

    static Jedis connect() {
        return new Jedis("127.0.0.1", port);
    }

    static final class Source extends RichParallelSourceFunction<byte[]> implements CheckpointedFunction {
        private transient ListState<Integer> saved;
        private int next = 0;
        private volatile boolean running = true;

        @Override
        public void run(SourceContext<byte[]> context) throws Exception {
            int index = getRuntimeContext().getTaskInfo().getIndexOfThisSubtask();
            byte[][] own = lines[index];
            ready.countDown();
            ready.await();
            if (index == 0) startNs = System.nanoTime();
            while (running && next < own.length) {
                synchronized (context.getCheckpointLock()) {
                    for (int end = Math.min(next + BATCH, own.length); next < end; next++) context.collect(own[next]);
                }
            }
        }

        @Override
        public void cancel() {
            running = false;
        }

        @Override
        public void initializeState(FunctionInitializationContext context) throws Exception {
            saved = context.getOperatorStateStore().getListState(new ListStateDescriptor<>("next", Types.INT));
        }

        @Override
        public void snapshotState(FunctionSnapshotContext context) throws Exception {
            saved.update(List.of(next));
        }
    }

    /** Of each view its campaign and its time. */
    static final class ParseAndJoin extends RichFlatMapFunction<byte[], Tuple2<String, Long>> {
        final String prefix;
        private transient JsonFactory json;
        private transient Jedis redis;
        private transient Map<String, String> campaigns;
        private final Tuple2<String, Long> made = new Tuple2<>();

        ParseAndJoin(String prefix) {
            this.prefix = prefix;
        }

        @Override
        public void open(OpenContext context) {
            json = new JsonFactory();
            redis = connect();
            campaigns = new HashMap<>();
        }

        @Override
        public void flatMap(byte[] line, Collector<Tuple2<String, Long>> out) throws IOException {
            String ad = null;
            boolean viewed = false;
            try (JsonParser parser = json.createParser(line)) {
                parser.nextToken();
                for (long time = -1; time < 0 && parser.nextToken() == JsonToken.FIELD_NAME; ) {
                    String name = parser.currentName();
                    parser.nextToken();
                    switch (name) {
                        case "ad_id" -> ad = parser.getText();
                        case "event_type" -> viewed = parser.getText().equals("view");
                        case "event_time" -> made.f1 = time = parser.getLongValue();
                        default -> {}
                    }
                }
            }
            if (!viewed) return;
            made.f0 = campaigns.get(ad);
            if (made.f0 == null) {
                made.f0 = redis.hget(prefix + "ads", ad);
                campaigns.put(ad, made.f0);
            }
            out.collect(made);
        }

        @Override
        public void close() {
            redis.close();
        }
    }

    static final class Count implements AggregateFunction<Tuple2<String, Long>, Long, Long> {
        @Override
        public Long createAccumulator() {
            return 0L;
        }

        @Override
        public Long add(Tuple2<String, Long> view, Long count) {
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

    static final class Name extends ProcessWindowFunction<Long, Tuple2<String, Long>, String, TimeWindow> {
        @Override
        public void process(String campaign, Context context, Iterable<Long> counts, Collector<Tuple2<String, Long>> out) {
            out.collect(Tuple2.of(campaign + ":" + context.window().getStart(), counts.iterator().next()));
        }
    }

    /** Sets hashes, which may come again after a failure. */
    static final class ToRedis implements Sink<Tuple2<String, Long>> {
        final String prefix;

        ToRedis(String prefix) {
            this.prefix = prefix;
        }

        @Override
        public SinkWriter<Tuple2<String, Long>> createWriter(WriterInitContext context) throws IOException {
            Jedis redis = connect();
            Pipeline pipeline = redis.pipelined();
            ready.countDown();
            return new SinkWriter<Tuple2<String, Long>>() {
                int unanswered = 0;

                @Override
                public void write(Tuple2<String, Long> row, Context context) {
                    pipeline.hset(prefix + "count:" + row.f0, "seen", Long.toString(row.f1));
                    views.addAndGet(row.f1);
                    if (++unanswered == UNANSWERED_MAX) flush(false);
                }

                @Override
                public void flush(boolean endOfInput) {
                    pipeline.sync();
                    unanswered = 0;
                    if (endOfInput) endNs = System.nanoTime();
                }

                @Override
                public void close() {
                    redis.close();
                }
            };
        }
    }

    static void run(MiniCluster cluster, String ads, String prefix, String folder) throws Exception {
        ready = new CountDownLatch(2 * SLOTS);
        views.set(0);
        Configuration configuration = new Configuration();
        configuration.set(CheckpointingOptions.CHECKPOINTS_DIRECTORY, Path.of(folder).toUri().toString());
        configuration.set(CheckpointingOptions.CHECKPOINTING_INTERVAL, Duration.ofSeconds(1));
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment(configuration);
        env.setParallelism(SLOTS);
        env.getConfig().enableObjectReuse();
        env.setBufferTimeout(-1); // buffers leave when they are full
        env.addSource(new Source())
                .flatMap(new ParseAndJoin(ads)).returns(Types.TUPLE(Types.STRING, Types.LONG))
                .assignTimestampsAndWatermarks(WatermarkStrategy.<Tuple2<String, Long>>forMonotonousTimestamps()
                        .withTimestampAssigner((view, before) -> view.f1))
                .keyBy(view -> view.f0, Types.STRING)
                .window(TumblingEventTimeWindows.of(Duration.ofSeconds(WINDOW_S)))
                .aggregate(new Count(), new Name())
                .sinkTo(new ToRedis(prefix));
        cluster.executeJobBlocking(env.getStreamGraph().getJobGraph());
    }

    static byte[][] read(List<String> files) throws IOException {
        List<byte[][]> read = new ArrayList<>();
        for (String file : files)
            read.add(Files.readAllLines(Path.of(file)).stream().map(String::getBytes).toArray(byte[][]::new));
        // In turn, so that a source's events are in the order of their times.
        List<byte[]> lines = new ArrayList<>();
        for (int nth = 0; nth < read.get(0).length; nth++)
            for (byte[][] file : read) if (nth < file.length) lines.add(file[nth]);
        return lines.toArray(new byte[0][]);
    }

    public static void main(String[] given) throws Exception {
        port = Integer.parseInt(given[0]);
        String prefix = given[1], folder = given[2];
        lines = new byte[SLOTS][][];
        for (int slot = 0; slot < SLOTS; slot++) {
            List<String> own = new ArrayList<>();
            for (int i = 3 + slot; i < given.length; i += SLOTS) own.add(given[i]);
            lines[slot] = read(own);
        }
        try (MiniCluster cluster = WindowsFlink.cluster()) {
            for (int i = 0; i < WARM_UPS; i++) run(cluster, prefix, "warm-up-" + i + ":", folder);
            run(cluster, prefix, prefix, folder);
            System.out.printf("{\"elapsed_s\": %.9f, \"views\": %d}%n", (endNs - startNs) / 1e9, views.get());
        }
    }
}

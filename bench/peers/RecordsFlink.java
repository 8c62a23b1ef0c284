/* Records with Apache Flink: the same as `records_mpi.cc`, as a streaming job whose tasks are written in Java.
 *
 *   java -cp CLASSES:JARS RecordsFlink TASK_MANAGERS OPERATION RECORDS
 *
 * The cluster and its settings, the warm-up and what is timed are those of `ExchangeFlink`. Flink puts records together by itself, in
 * network buffers that leave when they are full.
 *   partition  `partitionCustom` by the key, which costs less than `keyBy`
 *   reduce     what is chained to each source adds up its records; `global` brings the sums together
 *   broadcast  `broadcast`: one source sends each record to all targets
 * A record is a `byte[]`, whose serializer copies it as a whole. With object reuse a source fills the same one anew for each record.
 *
 * Prints {"rate_s": seconds of all records, "digest": what `records_mpi.cc` tells}. */
import java.io.IOException;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.atomic.LongAdder;
import org.apache.flink.api.common.functions.RichFlatMapFunction;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.util.Collector;

@SuppressWarnings({"serial", "try"}) // functions travel only within this program, which nobody interrupts
public final class RecordsFlink {
    static final int BYTES = 128, KEYS = 1024;
    static final Integer[] BOXED = new Integer[KEYS];
    static final LongAdder known = new LongAdder();

    static {
        for (int key = 0; key < KEYS; key++) BOXED[key] = key;
    }

    static int key(byte[] record) {
        return (int) (long) ExchangeFlink.WORDS.get(record, 0);
    }

    static final class Source extends RichFlatMapFunction<Integer, byte[]> {
        final int records;

        Source(int records) {
            this.records = records;
        }

        @Override
        public void flatMap(Integer start, Collector<byte[]> out) throws Exception {
            byte[] record = new byte[BYTES];
            long from = getRuntimeContext().getTaskInfo().getIndexOfThisSubtask();
            ExchangeFlink.waitForAll();
            for (int number = 0; number < records; number++) {
                ExchangeFlink.make(record, from + number);
                ExchangeFlink.WORDS.set(record, 0, ((from + number) * 2654435761L & 0xffffffffL) >> 22);
                out.collect(record);
            }
        }
    }

    static final class Target implements Sink<byte[]> {
        final boolean reduced;

        Target(boolean reduced) {
            this.reduced = reduced;
        }

        @Override
        public SinkWriter<byte[]> createWriter(WriterInitContext context) throws IOException {
            ExchangeFlink.waitForAll();
            return new SinkWriter<byte[]>() {
                private final boolean[] seen = new boolean[KEYS];
                private long sum;

                @Override
                public void write(byte[] record, Context context) {
                    sum += ExchangeFlink.sum(record);
                    if (!reduced) seen[key(record)] = true;
                }

                @Override
                public void flush(boolean endOfInput) {
                    if (!endOfInput) return;
                    ExchangeFlink.total.add(sum);
                    for (boolean one : seen) known.add(one ? 1 : 0);
                    ExchangeFlink.endNs = System.nanoTime();
                }

                @Override
                public void close() {}
            };
        }
    }

    static void run(MiniCluster cluster, String operation, int records) throws Exception {
        boolean broadcast = operation.equals("broadcast"), reduced = operation.equals("reduce");
        int sources = broadcast ? 1 : ExchangeFlink.SLOTS, targets = reduced ? 1 : ExchangeFlink.SLOTS;
        ExchangeFlink.begin = new CyclicBarrier(sources + targets, () -> ExchangeFlink.startNs = System.nanoTime());
        ExchangeFlink.total.reset();
        known.reset();

        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment();
        env.setParallelism(ExchangeFlink.SLOTS);
        env.getConfig().enableObjectReuse();
        env.setBufferTimeout(-1); // buffers leave when they are full
        DataStream<byte[]> source = env.fromData(broadcast ? new Integer[] {0} : new Integer[] {0, 1})
                .rebalance() // one element to each source
                .flatMap(new Source(records))
                .returns(ExchangeFlink.MESSAGE)
                .setParallelism(sources);
        DataStream<byte[]> exchanged = switch (operation) {
            case "partition" -> source.partitionCustom((key, copies) -> key % copies, record -> BOXED[key(record)]);
            case "reduce" -> source.transform("combine", ExchangeFlink.MESSAGE, new ExchangeFlink.Combine())
                    .global().transform("combine", ExchangeFlink.MESSAGE, new ExchangeFlink.Combine()).setParallelism(1);
            case "broadcast" -> source.broadcast();
            default -> throw new IllegalArgumentException("no such operation: " + operation);
        };
        exchanged.sinkTo(new Target(reduced)).setParallelism(targets);
        cluster.executeJobBlocking(env.getStreamGraph().getJobGraph());
    }

    public static void main(String[] given) throws Exception {
        if (given.length != 3) {
            System.err.println("usage: RecordsFlink 1|2 partition|reduce|broadcast RECORDS");
            System.exit(2);
        }
        int records = Integer.parseInt(given[2]);
        try (MiniCluster cluster = ExchangeFlink.cluster(Integer.parseInt(given[0]))) {
            for (int i = 0; i <= ExchangeFlink.WARM_UPS; i++) run(cluster, given[1], records);
            double rateS = (ExchangeFlink.endNs - ExchangeFlink.startNs) / 1e9;
            String total = Long.toUnsignedString(ExchangeFlink.total.sum());
            System.out.printf("{\"rate_s\": %.9g, \"digest\": \"%s %d\"}%n", rateS, total, known.sum());
        }
    }
}

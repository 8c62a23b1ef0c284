/* Exchanges with Apache Flink: the same as `exchange_mpi.cc`, as a streaming job whose tasks are written in Java.
 *
 *   java -cp CLASSES:JARS ExchangeFlink TASK_MANAGERS OPERATION BYTES MESSAGES
 *
 * A mini-cluster with two slots: of two task managers, between which messages go over TCP, or of one, within which they go through
 * its memory. Each slot has a source and a target. All is one process, so that its clock and its counts are everybody's.
 *   partition  `rebalance`: each source sends its messages to all targets in turn
 *   reduce     what is chained to each source adds up its messages, element by element; `global` brings the sums together
 *   gather     `global`: all messages to one target
 *   broadcast  `broadcast`: one source sends each message to all targets
 * A message is a `byte[]`, whose serializer copies it as a whole (that of `long[]` goes word by word), read and written as
 * 8-byte whole numbers. With object reuse a source fills the same one anew for each message: it is serialized within `collect`.
 *
 * Prints {"rate_s": seconds of all messages, "latency_s": median seconds of one, "digest": a sum over all targets}. Rate: from the
 * moment that all sources and targets are ready, so without start and submission of the job, to the end of the last target.
 * Latency: from before a message is made to its arrival; the next one is sent when it has arrived everywhere. */
import java.io.IOException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.concurrent.BrokenBarrierException;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.LongAdder;
import org.apache.flink.api.common.functions.RichFlatMapFunction;
import org.apache.flink.api.common.typeinfo.PrimitiveArrayTypeInfo;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.JobManagerOptions;
import org.apache.flink.configuration.MemorySize;
import org.apache.flink.configuration.TaskManagerOptions;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.operators.AbstractStreamOperator;
import org.apache.flink.streaming.api.operators.BoundedOneInput;
import org.apache.flink.streaming.api.operators.OneInputStreamOperator;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;
import org.apache.flink.util.Collector;

@SuppressWarnings({"serial", "try"}) // functions travel only within this program, which nobody interrupts
public final class ExchangeFlink {
    static final int SLOTS = 2;
    static final int SINGLE = 2000; // messages that are sent one at a time, at most
    static final int WARM_UPS = 5; // the JIT compiler still gains after the third job of all messages
    static final int SINGLE_WARM_UPS = 2;
    static final TypeInformation<byte[]> MESSAGE = PrimitiveArrayTypeInfo.BYTE_PRIMITIVE_ARRAY_TYPE_INFO;
    static final VarHandle WORDS = MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.nativeOrder());

    // Of the job that runs.
    static CyclicBarrier begin; // sources and targets meet here
    static volatile long startNs, endNs;
    static final LongAdder total = new LongAdder();
    static final Semaphore turn = new Semaphore(1); // of the sources, where one message is under way
    static final Semaphore arrivals = new Semaphore(0);
    static final ConcurrentLinkedQueue<Long> latenciesNs = new ConcurrentLinkedQueue<>();

    static void waitForAll() throws IOException {
        try {
            begin.await();
        } catch (InterruptedException | BrokenBarrierException error) {
            throw new IOException(error);
        }
    }

    /** Message `number` of source `from`, the same in every program that takes part, begins with their sum. */
    static void make(byte[] message, long first) {
        for (int i = 0; i < message.length; i += Long.BYTES) WORDS.set(message, i, first++);
    }

    static long sum(byte[] message) {
        long sum = 0;
        for (int i = 0; i < message.length; i += Long.BYTES) sum += (long) WORDS.get(message, i);
        return sum;
    }

    /** Sends all messages of one source when the one element comes that starts it: a loop without the locks of Flink's sources. */
    static final class Source extends RichFlatMapFunction<Integer, byte[]> {
        final int bytes, messages;

        Source(int bytes, int messages) {
            this.bytes = bytes;
            this.messages = messages;
        }

        @Override
        public void flatMap(Integer start, Collector<byte[]> out) throws Exception {
            byte[] message = new byte[bytes];
            long from = getRuntimeContext().getTaskInfo().getIndexOfThisSubtask();
            waitForAll();
            for (int number = 0; number < messages; number++) {
                make(message, from + number);
                out.collect(message);
            }
        }
    }

    /** The same with one message at a time under way in the whole job; its words are the time when it was begun. */
    static final class SingleSource extends RichFlatMapFunction<Integer, byte[]> {
        final int bytes, messages, copies; // copies that arrive of each message

        SingleSource(int bytes, int messages, int copies) {
            this.bytes = bytes;
            this.messages = messages;
            this.copies = copies;
        }

        @Override
        public void flatMap(Integer start, Collector<byte[]> out) throws Exception {
            byte[] message = new byte[bytes];
            waitForAll();
            for (int number = 0; number < messages; number++) {
                turn.acquire();
                long nowNs = System.nanoTime();
                for (int i = 0; i < bytes; i += Long.BYTES) WORDS.set(message, i, nowNs);
                out.collect(message);
                arrivals.acquire(copies);
                turn.release();
            }
        }
    }

    /** Adds up messages, element by element, and sends the sums when the last has come. */
    static final class Combine extends AbstractStreamOperator<byte[]>
            implements OneInputStreamOperator<byte[], byte[]>, BoundedOneInput {
        private transient byte[] sums;

        @Override
        public void processElement(StreamRecord<byte[]> record) {
            byte[] message = record.getValue();
            if (sums == null) sums = new byte[message.length];
            for (int i = 0; i < message.length; i += Long.BYTES)
                WORDS.set(sums, i, (long) WORDS.get(sums, i) + (long) WORDS.get(message, i));
        }

        @Override
        public void endInput() {
            if (sums != null) output.collect(new StreamRecord<>(sums));
        }
    }

    /** Adds up all words of all messages; of single ones it tells how long they took. */
    static final class Target implements Sink<byte[]> {
        final boolean single;

        Target(boolean single) {
            this.single = single;
        }

        @Override
        public SinkWriter<byte[]> createWriter(WriterInitContext context) throws IOException {
            waitForAll();
            return new SinkWriter<byte[]>() {
                private long sum;

                @Override
                public void write(byte[] message, Context context) {
                    if (single) {
                        latenciesNs.add(System.nanoTime() - (long) WORDS.get(message, 0));
                        arrivals.release();
                    } else {
                        sum += sum(message);
                    }
                }

                @Override
                public void flush(boolean endOfInput) {
                    if (!endOfInput) return;
                    total.add(sum);
                    endNs = System.nanoTime();
                }

                @Override
                public void close() {}
            };
        }
    }

    static void run(MiniCluster cluster, String operation, int bytes, int messages, boolean single) throws Exception {
        boolean broadcast = operation.equals("broadcast");
        int sources = broadcast ? 1 : SLOTS;
        int targets = operation.equals("gather") || operation.equals("reduce") ? 1 : SLOTS;
        begin = new CyclicBarrier(sources + targets, () -> startNs = System.nanoTime());
        total.reset();
        latenciesNs.clear();

        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment();
        env.setParallelism(SLOTS);
        env.getConfig().enableObjectReuse();
        // Buffers leave when they are full; a single message leaves at once.
        env.setBufferTimeout(single ? 0 : -1);
        DataStream<byte[]> source = env.fromData(broadcast ? new Integer[] {0} : new Integer[] {0, 1})
                .rebalance() // one element to each source
                .flatMap(single ? new SingleSource(bytes, messages, broadcast ? SLOTS : 1) : new Source(bytes, messages))
                .returns(MESSAGE)
                .setParallelism(sources);
        DataStream<byte[]> exchanged = switch (operation) {
            case "partition" -> source.rebalance();
            case "reduce" -> source.transform("combine", MESSAGE, new Combine())
                    .global().transform("combine", MESSAGE, new Combine()).setParallelism(1);
            case "gather" -> source.global();
            case "broadcast" -> source.broadcast();
            default -> throw new IllegalArgumentException("no such operation: " + operation);
        };
        exchanged.sinkTo(new Target(single)).setParallelism(targets);
        cluster.executeJobBlocking(env.getStreamGraph().getJobGraph());
    }

    static MiniCluster cluster(int taskManagers) throws Exception {
        return cluster(taskManagers, SLOTS);
    }

    static MiniCluster cluster(int taskManagers, int slots) throws Exception {
        Configuration configuration = new Configuration();
        // Room for many messages of 128 KiB; without the two lines it would be 64 MiB.
        configuration.set(TaskManagerOptions.NETWORK_MEMORY_MIN, MemorySize.ofMebiBytes(512));
        configuration.set(TaskManagerOptions.NETWORK_MEMORY_MAX, MemorySize.ofMebiBytes(512));
        // Nothing listens to other hosts.
        configuration.set(JobManagerOptions.BIND_HOST, "localhost");
        configuration.set(TaskManagerOptions.HOST, "localhost");
        configuration.set(TaskManagerOptions.BIND_HOST, "localhost");
        MiniCluster cluster = new MiniCluster(new MiniClusterConfiguration.Builder()
                .setConfiguration(configuration)
                .setNumTaskManagers(taskManagers)
                .setNumSlotsPerTaskManager(slots / taskManagers)
                .build());
        cluster.start();
        return cluster;
    }

    public static void main(String[] given) throws Exception {
        if (given.length != 4 || Integer.parseInt(given[2]) < 8 || Integer.parseInt(given[2]) % 8 != 0) {
            System.err.println("usage: ExchangeFlink 1|2 partition|reduce|gather|broadcast BYTES MESSAGES, bytes a multiple of 8");
            System.exit(2);
        }
        String operation = given[1];
        int taskManagers = Integer.parseInt(given[0]), bytes = Integer.parseInt(given[2]), messages = Integer.parseInt(given[3]);
        try (MiniCluster cluster = cluster(taskManagers)) {
            for (int i = 0; i <= WARM_UPS; i++) run(cluster, operation, bytes, messages, false);
            double rateS = (endNs - startNs) / 1e9;
            String digest = Long.toUnsignedString(total.sum());
            String latencyS = "null"; // a reduction gives nothing before all has come
            if (!operation.equals("reduce")) {
                for (int i = 0; i <= SINGLE_WARM_UPS; i++) run(cluster, operation, bytes, Math.min(messages, SINGLE), true);
                long[] sorted = latenciesNs.stream().mapToLong(Long::longValue).sorted().toArray();
                latencyS = String.format("%.9g", sorted[sorted.length / 2] / 1e9);
            }
            System.out.printf("{\"rate_s\": %.9g, \"latency_s\": %s, \"digest\": \"%s\"}%n", rateS, latencyS, digest);
        }
    }
}

/* Rounds with Apache Flink: the same as `rounds_mpi.cc`, as a streaming job whose tasks are written in Java.
 *
 *   java -cp CLASSES:JARS RoundsFlink TASK_MANAGERS TASKS OPERATION BYTES ROUNDS SINGLE
 *
 * A mini-cluster as in `ExchangeFlink`, with a slot for each task. Flink reduces at the end of a window or of the input, so an
 * operator of our own adds up by the number of the round, which stands in front of each message. Its table is a plain one, without
 * Flink's state. Two ways to it, of which the faster one counts:
 *   global     one operator for all rounds; of `reduce` it is chained to the target
 *   by round   as many as tasks, among which the rounds go in turn, so that they share the work (`partitionCustom`, cheaper than `keyBy`)
 * Sums go on to the one target (`global`) or to all (`broadcast`). There are no loops in the graph: what lets the next lone round begin
 * is a semaphore within this process.
 *
 * Prints {"rate_s": seconds of all rounds, "p50_s": and "p99_s": seconds of a lone one, "digest": a sum over all targets, "route": its
 * way}. */
import java.io.IOException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.DoubleAdder;
import java.util.stream.IntStream;
import org.apache.flink.api.common.functions.RichFlatMapFunction;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.operators.AbstractStreamOperator;
import org.apache.flink.streaming.api.operators.OneInputStreamOperator;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;
import org.apache.flink.util.Collector;

@SuppressWarnings({"serial", "try"}) // functions travel only within this program, which nobody interrupts
public final class RoundsFlink {
    static final int HEAD = Long.BYTES; // the number of the round
    static final int WARM_UPS = 3;
    static final VarHandle NUMBERS = MethodHandles.byteArrayViewVarHandle(double[].class, ByteOrder.nativeOrder());

    // Of the job that runs.
    static final DoubleAdder total = new DoubleAdder();
    static Semaphore[] turns; // of each source, where one round is under way
    static long[][] startsNs, endsNs; // of each source and target, of lone rounds

    /** Message `number` of source `from`, the same in every program that takes part. */
    static void make(byte[] message, long from, long number) {
        ExchangeFlink.WORDS.set(message, 0, number);
        double value = from + number;
        for (int i = HEAD; i < message.length; i += Double.BYTES) NUMBERS.set(message, i, value++);
    }

    static double sum(byte[] message) {
        double sum = 0;
        for (int i = HEAD; i < message.length; i += Double.BYTES) sum += (double) NUMBERS.get(message, i);
        return sum;
    }

    static long round(byte[] message) {
        return (long) ExchangeFlink.WORDS.get(message, 0);
    }

    /** Sends a message for each round, when the one element comes that starts it; lone ones when all targets have the one before. */
    static final class Source extends RichFlatMapFunction<Integer, byte[]> {
        final int bytes, rounds, targets;
        final boolean single;

        Source(int bytes, int rounds, boolean single, int targets) {
            this.bytes = bytes;
            this.rounds = rounds;
            this.single = single;
            this.targets = targets;
        }

        @Override
        public void flatMap(Integer start, Collector<byte[]> out) throws Exception {
            byte[] message = new byte[HEAD + bytes];
            int from = getRuntimeContext().getTaskInfo().getIndexOfThisSubtask();
            ExchangeFlink.waitForAll();
            for (int number = 0; number < rounds; number++) {
                if (single) {
                    if (number > 0) turns[from].acquire(targets);
                    startsNs[from][number] = System.nanoTime();
                }
                make(message, from, number);
                out.collect(message);
            }
        }
    }

    /** Adds up the messages of each round, element by element, and sends the sum when all have come. */
    static final class Sums extends AbstractStreamOperator<byte[]> implements OneInputStreamOperator<byte[], byte[]> {
        /** A round of which some messages have come. */
        static final class Open {
            byte[] sums;
            int missing;
        }

        final int sources;
        private transient Map<Long, Open> open;
        private transient ArrayDeque<Open> spare; // so that arrays are not made anew for each round

        Sums(int sources) {
            this.sources = sources;
        }

        @Override
        public void open() {
            open = new HashMap<>();
            spare = new ArrayDeque<>();
        }

        @Override
        public void processElement(StreamRecord<byte[]> record) {
            byte[] message = record.getValue();
            long round = round(message);
            Open of = open.get(round);
            if (of == null) {
                of = spare.isEmpty() ? new Open() : spare.pop();
                if (of.sums == null) of.sums = new byte[message.length];
                System.arraycopy(message, 0, of.sums, 0, message.length);
                of.missing = sources - 1;
                open.put(round, of);
            } else {
                for (int i = HEAD; i < message.length; i += Double.BYTES)
                    NUMBERS.set(of.sums, i, (double) NUMBERS.get(of.sums, i) + (double) NUMBERS.get(message, i));
                of.missing--;
            }
            if (of.missing > 0) return;
            open.remove(round);
            output.collect(new StreamRecord<>(of.sums));
            spare.push(of);
        }
    }

    /** Adds up all numbers of all results; of lone ones it tells when they came. */
    static final class Target implements Sink<byte[]> {
        final boolean single;

        Target(boolean single) {
            this.single = single;
        }

        @Override
        public SinkWriter<byte[]> createWriter(WriterInitContext context) throws IOException {
            int copy = context.getTaskInfo().getIndexOfThisSubtask();
            ExchangeFlink.waitForAll();
            return new SinkWriter<byte[]>() {
                private double sum;

                @Override
                public void write(byte[] message, Context context) {
                    sum += sum(message);
                    if (!single) return;
                    endsNs[copy][(int) round(message)] = System.nanoTime();
                    for (Semaphore turn : turns) turn.release();
                }

                @Override
                public void flush(boolean endOfInput) {
                    if (!endOfInput) return;
                    total.add(sum);
                    ExchangeFlink.endNs = System.nanoTime();
                }

                @Override
                public void close() {}
            };
        }
    }

    static void run(MiniCluster cluster, int tasks, String operation, boolean byRound, int bytes, int rounds, boolean single)
            throws Exception {
        boolean broadcast = operation.equals("broadcast"), toOne = operation.equals("reduce");
        int sources = broadcast ? 1 : tasks, targets = toOne ? 1 : tasks;
        ExchangeFlink.begin = new CyclicBarrier(sources + targets, () -> ExchangeFlink.startNs = System.nanoTime());
        total.reset();
        turns = IntStream.range(0, sources).mapToObj(i -> new Semaphore(0)).toArray(Semaphore[]::new);
        startsNs = new long[sources][rounds];
        endsNs = new long[targets][rounds];

        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment();
        env.setParallelism(tasks);
        env.getConfig().enableObjectReuse();
        // Buffers leave when they are full; a single message leaves at once.
        env.setBufferTimeout(single ? 0 : -1);
        DataStream<byte[]> source = env.fromData(IntStream.range(0, sources).boxed().toArray(Integer[]::new))
                .rebalance() // one element to each source
                .flatMap(new Source(bytes, rounds, single, targets))
                .returns(ExchangeFlink.MESSAGE)
                .setParallelism(sources);
        DataStream<byte[]> results = source;
        if (!broadcast) {
            DataStream<byte[]> routed = byRound
                    ? source.partitionCustom((round, copies) -> (int) (round % copies), RoundsFlink::round)
                    : source.global();
            results = routed.transform("sums", ExchangeFlink.MESSAGE, new Sums(sources)).setParallelism(byRound ? tasks : 1);
        }
        // The one operator and the one target are chained.
        if (!toOne) results = results.broadcast();
        else if (byRound) results = results.global();
        results.sinkTo(new Target(single)).setParallelism(targets);
        cluster.executeJobBlocking(env.getStreamGraph().getJobGraph());
    }

    /** Seconds of a lone round, from the last source to begin to the last target, in order. */
    static double[] latenciesS() {
        return IntStream.range(0, startsNs[0].length)
                .mapToDouble(number -> (latest(endsNs, number) - latest(startsNs, number)) / 1e9)
                .sorted()
                .toArray();
    }

    static long latest(long[][] timesNs, int number) {
        return Arrays.stream(timesNs).mapToLong(of -> of[number]).max().getAsLong();
    }

    static double percentile(double[] sorted, int part) {
        return sorted[(sorted.length * part + 99) / 100 - 1];
    }

    public static void main(String[] given) throws Exception {
        if (given.length != 6 || Integer.parseInt(given[3]) < 8 || Integer.parseInt(given[3]) % 8 != 0) {
            System.err.println("usage: RoundsFlink 1|2 TASKS reduce|broadcast|allreduce BYTES ROUNDS SINGLE, bytes a multiple of 8");
            System.exit(2);
        }
        int taskManagers = Integer.parseInt(given[0]), tasks = Integer.parseInt(given[1]);
        String operation = given[2];
        int bytes = Integer.parseInt(given[3]), rounds = Integer.parseInt(given[4]), single = Integer.parseInt(given[5]);
        boolean[] routes = operation.equals("broadcast") ? new boolean[] {false} : new boolean[] {false, true};
        double bestS = Double.MAX_VALUE, p50S = Double.MAX_VALUE, p99S = 0;
        boolean bestByRound = false;
        String digest = "";
        try (MiniCluster cluster = ExchangeFlink.cluster(taskManagers, tasks)) {
            for (boolean byRound : routes) {
                for (int i = 0; i <= WARM_UPS; i++) run(cluster, tasks, operation, byRound, bytes, rounds, false);
                double rateS = (ExchangeFlink.endNs - ExchangeFlink.startNs) / 1e9;
                String found = String.format("%.0f", total.sum());
                // Both ways must come to the same; a wrong one is told by the digest.
                digest = digest.isEmpty() || digest.equals(found) ? found : digest + " " + found;
                if (rateS < bestS) bestByRound = byRound;
                bestS = Math.min(bestS, rateS);
                for (int i = 0; i <= ExchangeFlink.SINGLE_WARM_UPS; i++) run(cluster, tasks, operation, byRound, bytes, single, true);
                double[] latenciesS = latenciesS();
                if (percentile(latenciesS, 50) >= p50S) continue;
                p50S = percentile(latenciesS, 50);
                p99S = percentile(latenciesS, 99);
            }
            System.out.printf("{\"rate_s\": %.9g, \"p50_s\": %.9g, \"p99_s\": %.9g, \"digest\": \"%s\", \"route\": \"%s\"}%n", bestS, p50S, p99S, digest,
                    bestByRound ? "by round" : "global");
        }
    }
}

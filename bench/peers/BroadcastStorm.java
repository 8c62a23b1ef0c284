/* Broadcasts with Apache Storm: the same as `broadcast_worker.py`, on a cluster that `harness/storm.py` has started.
 *
 *   java -Dstorm.jar=JAR -cp JARS:CONF:JAR BroadcastStorm SLOTS FOLDER TASKS,SIZE,SINGLES,SINGLE_S,MANY ...
 *
 * One topology for each number of tasks: a spout, N bolts that get each message of it (all grouping), and a bolt that gets their answers of
 * eight bytes (global grouping). The spout and the last bolt are in one worker, so one clock times both and a semaphore there bounds the
 * messages in flight, which is what `topology.max.spout.pending` does where there are ackers. There are none, as Tidemill's job makes no
 * checkpoints: each message would cost one more for each task.
 *
 * Prints a JSON object for each point, as `broadcast_worker.py` does. The share of processors is that of the whole machine. */
import java.io.FileWriter;
import java.io.IOException;
import java.io.Serializable;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.stream.LongStream;
import org.apache.storm.Config;
import org.apache.storm.StormSubmitter;
import org.apache.storm.generated.KillOptions;
import org.apache.storm.metric.StormMetricsRegistry;
import org.apache.storm.scheduler.Cluster;
import org.apache.storm.scheduler.ExecutorDetails;
import org.apache.storm.scheduler.IScheduler;
import org.apache.storm.scheduler.SupervisorDetails;
import org.apache.storm.scheduler.Topologies;
import org.apache.storm.scheduler.TopologyDetails;
import org.apache.storm.scheduler.WorkerSlot;
import org.apache.storm.spout.SpoutOutputCollector;
import org.apache.storm.task.OutputCollector;
import org.apache.storm.task.TopologyContext;
import org.apache.storm.topology.OutputFieldsDeclarer;
import org.apache.storm.topology.TopologyBuilder;
import org.apache.storm.topology.base.BaseRichBolt;
import org.apache.storm.topology.base.BaseRichSpout;
import org.apache.storm.tuple.Fields;
import org.apache.storm.tuple.Tuple;
import org.apache.storm.tuple.Values;
import org.apache.storm.utils.NimbusClient;
import org.apache.storm.utils.Utils;

@SuppressWarnings("serial") // spouts and bolts travel only between processes of this program
public final class BroadcastStorm {
    /** Messages that are not timed, before those that are. */
    static final int WARM_UPS = 2;
    /** Before the first point, while Java compiles: so many messages, or so long. */
    static final Point COLD = new Point(1000, 0, 0, 3000);
    static final double COLD_S = 6;
    /** Of messages and their copies in flight. */
    static final long IN_FLIGHT_BYTES = 64_000_000, IN_FLIGHT_MAX = 200;
    /** Without any answer for so long a point has failed; without workers for so long, a topology has. */
    static final long SILENCE_S = 120, START_S = 300;
    /** A message that comes to a worker before its tasks are there is lost: then all begins again. */
    static final long COLD_SILENCE_S = 3;
    static final String SLOTS = "broadcast.slots", WORK = "work";

    /** What is asked for. */
    static final class Point implements Serializable {
        final int size, singles, many;
        final double singleS;

        Point(int size, int singles, double singleS, int many) {
            this.size = size;
            this.singles = singles;
            this.singleS = singleS;
            this.many = many;
        }
    }

    /** Messages that are sent now, and what has come back; of source and sink, which share a process. */
    static final class Run {
        final long first; // number of the first message
        final int window;
        final long[] startsNs, endsNs;
        final int[] answers; // to each message
        final Semaphore places; // among those in flight
        final long[] cpuBefore = processors();
        final long untilNs;
        final int least;
        int sent;
        volatile boolean tooMany;
        volatile long heardNs = System.nanoTime();

        /** At most `limit` messages, and after `seconds` no more than `least`. */
        Run(long first, int limit, int least, double seconds, int window) {
            this.first = first;
            this.window = window;
            this.least = least;
            startsNs = new long[limit];
            endsNs = new long[limit];
            answers = new int[limit];
            places = new Semaphore(window);
            untilNs = System.nanoTime() + (long) (seconds * 1e9);
        }

        boolean hasMore() {
            return sent < startsNs.length && (sent < least || System.nanoTime() < untilNs);
        }

        void answer(long number, int tasks) {
            if (number < first) return; // of a cold run that was given up
            int place = (int) (number - first);
            if (++answers[place] > tasks) tooMany = true;
            heardNs = System.nanoTime();
            if (answers[place] != tasks) return;
            endsNs[place] = heardNs;
            places.release();
        }

        double cpu() {
            long[] after = processors();
            return (double) (after[0] - cpuBefore[0]) / Math.max(after[1] - cpuBefore[1], 1);
        }
    }

    static volatile Run run;

    /** Of all processors since the machine's start: what programs and the kernel for them have used, and all, in ticks. */
    static long[] processors() {
        try {
            String[] words = Files.readAllLines(Path.of("/proc/stat")).get(0).trim().split("\\s+");
            long[] ticks = Arrays.stream(words, 1, 9).mapToLong(Long::parseLong).toArray();
            return new long[] {ticks[0] + ticks[1] + ticks[2], LongStream.of(ticks).sum()};
        } catch (IOException error) {
            return new long[2];
        }
    }

    /** Sends the messages of all points, first one by one, then many, and writes down what it finds. */
    static final class Source extends BaseRichSpout {
        final int tasks;
        final Point[] points;
        final String results;
        private transient SpoutOutputCollector collector;
        private transient byte[] payload;
        private transient int step; // 0 is cold, then two for each point
        private transient long runs;
        private transient String singles;
        private transient boolean singlesRight;

        Source(int tasks, Point[] points, String results) {
            this.tasks = tasks;
            this.points = points;
            this.results = results;
        }

        @Override
        public void open(Map<String, Object> config, TopologyContext context, SpoutOutputCollector collector) {
            this.collector = collector;
        }

        @Override
        public void declareOutputFields(OutputFieldsDeclarer declarer) {
            declarer.declare(new Fields("number", "payload"));
        }

        private Point point() {
            return step == 0 ? COLD : points[(step - 1) / 2];
        }

        private Run begin() {
            Point point = point();
            long first = runs++ << 32;
            payload = new byte[point.size];
            if (step % 2 == 1) return new Run(first, point.singles + WARM_UPS, WARM_UPS + 3, point.singleS, 1);
            long window = Math.max(2, Math.min(IN_FLIGHT_MAX, IN_FLIGHT_BYTES / ((long) point.size * tasks)));
            return new Run(first, point.many, step == 0 ? 1 : point.many, COLD_S, (int) window);
        }

        /** What was emitted leaves only after this returns, if queues are full: so waiting comes before sending. */
        @Override
        public void nextTuple() {
            if (step > 2 * points.length) {
                Utils.sleep(100);
                return;
            }
            if (run == null) run = begin();
            Run now = run;
            boolean more = now.hasMore();
            try {
                if (!now.places.tryAcquire(more ? 1 : now.window, 50, TimeUnit.MILLISECONDS)) {
                    long silenceS = (System.nanoTime() - now.heardNs) / 1_000_000_000L;
                    if (step == 0 && silenceS > COLD_SILENCE_S) run = null;
                    if (silenceS > SILENCE_S) fail(now);
                    return;
                }
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
                return;
            }
            if (more) {
                now.startsNs[now.sent] = System.nanoTime();
                collector.emit(new Values(now.first + now.sent++, payload));
                return;
            }
            if (step > 0) end(now);
            step++;
            run = null;
        }

        private void end(Run now) {
            boolean right = !now.tooMany && Arrays.stream(now.answers, 0, now.sent).allMatch(count -> count == tasks);
            if (step % 2 == 1) {
                double[] latenciesS = LongStream.range(WARM_UPS, now.sent)
                        .mapToDouble(message -> (now.endsNs[(int) message] - now.startsNs[(int) message]) / 1e9)
                        .sorted()
                        .toArray();
                singles = String.format(Locale.ROOT, "\"p50_s\": %.9g, \"p90_s\": %.9g, \"p99_s\": %.9g, \"singles\": %d, \"single_cpu\": %.4f",
                        percentile(latenciesS, 50), percentile(latenciesS, 90), percentile(latenciesS, 99), latenciesS.length, now.cpu());
                singlesRight = right;
                return;
            }
            double tookS = (LongStream.of(now.endsNs).max().getAsLong() - now.startsNs[0]) / 1e9;
            write(String.format(Locale.ROOT,
                    "{\"overlay\": \"storm\", \"tasks\": %d, \"size\": %d, %s, \"right\": %b, \"rate\": %.9g, \"many\": %d, \"many_cpu\": %.4f}",
                    tasks, point().size, singles, right && singlesRight, now.sent / tookS, now.sent, now.cpu()));
        }

        private void fail(Run now) {
            long back = Arrays.stream(now.answers).filter(count -> count == tasks).count();
            write(String.format("failed: %d tasks, %d bytes: no answer for %d s, when %d of %d messages were back", tasks, point().size, SILENCE_S,
                    back, now.sent));
            step = Integer.MAX_VALUE;
        }

        private void write(String line) {
            try (FileWriter file = new FileWriter(results, true)) {
                file.write(line + "\n");
            } catch (IOException error) {
                throw new IllegalStateException(error);
            }
        }
    }

    static double percentile(double[] sorted, int part) {
        return sorted[(sorted.length * part + 99) / 100 - 1];
    }

    /** Answers each message with its number. */
    static final class Work extends BaseRichBolt {
        private transient OutputCollector collector;

        @Override
        public void prepare(Map<String, Object> config, TopologyContext context, OutputCollector collector) {
            this.collector = collector;
        }

        @Override
        public void execute(Tuple message) {
            collector.emit(new Values(message.getLong(0)));
        }

        @Override
        public void declareOutputFields(OutputFieldsDeclarer declarer) {
            declarer.declare(new Fields("number"));
        }
    }

    /** Counts the answers. */
    static final class Sink extends BaseRichBolt {
        final int tasks;

        Sink(int tasks) {
            this.tasks = tasks;
        }

        @Override
        public void prepare(Map<String, Object> config, TopologyContext context, OutputCollector collector) {}

        @Override
        public void execute(Tuple answer) {
            Run now = run;
            if (now != null) now.answer(answer.getLong(0), tasks);
        }

        @Override
        public void declareOutputFields(OutputFieldsDeclarer declarer) {}
    }

    /** Places tasks as `broadcast_worker.py` does: over the hosts first, then over the workers of each; source and sink on the first worker. */
    public static final class Places implements IScheduler {
        @Override
        public void prepare(Map<String, Object> config, StormMetricsRegistry registry) {}

        @Override
        public void schedule(Topologies topologies, Cluster cluster) {
            for (TopologyDetails topology : cluster.needsSchedulingTopologies()) {
                List<WorkerSlot> slots = spread(cluster);
                // All hosts must be there, and no task moves: a point that loses a worker fails.
                if (slots.size() < ((Number) topology.getConf().get(SLOTS)).intValue()) continue;
                Map<WorkerSlot, List<ExecutorDetails>> placed = new HashMap<>();
                topology.getComponentToExecutors().forEach((component, executors) -> {
                    ExecutorDetails[] sorted = executors.toArray(new ExecutorDetails[0]);
                    Arrays.sort(sorted, Comparator.comparingInt(ExecutorDetails::getStartTask));
                    for (int i = 0; i < sorted.length; i++) {
                        WorkerSlot slot = slots.get(component.equals(WORK) ? i % slots.size() : 0);
                        placed.computeIfAbsent(slot, any -> new ArrayList<>()).add(sorted[i]);
                    }
                });
                placed.forEach((slot, executors) -> cluster.assign(slot, topology.getId(), executors));
            }
        }

        /** The free slots: a first one of each host, then a second one, and so on. */
        private static List<WorkerSlot> spread(Cluster cluster) {
            Comparator<SupervisorDetails> byAddress = Comparator.comparingInt(host -> host.getHost().length());
            List<SupervisorDetails> hosts = new ArrayList<>(cluster.getSupervisors().values());
            hosts.sort(byAddress.thenComparing(SupervisorDetails::getHost));
            List<WorkerSlot> slots = new ArrayList<>();
            // The sort is stable: slots of the same port stay in the order of hosts.
            for (SupervisorDetails host : hosts) slots.addAll(cluster.getAvailableSlots(host));
            slots.sort(Comparator.comparingInt(WorkerSlot::getPort));
            return slots;
        }

        @Override
        public Map<String, Object> config() {
            return Map.of();
        }
    }

    /** One topology, from its start until nothing of it is left. */
    static void measure(int slots, int tasks, List<Point> points, Path results) throws Exception {
        TopologyBuilder builder = new TopologyBuilder();
        builder.setSpout("source", new Source(tasks, points.toArray(new Point[0]), results.toString()), 1);
        builder.setBolt(WORK, new Work(), tasks).allGrouping("source");
        builder.setBolt("sink", new Sink(tasks), 1).globalGrouping(WORK);
        Config config = new Config();
        config.setNumWorkers(Math.min(tasks, slots));
        config.setNumAckers(0);
        config.put(SLOTS, slots);
        String name = "broadcast-" + tasks;
        StormSubmitter.submitTopology(name, config, builder.createTopology());
        try {
            follow(results, points.size());
        } finally {
            KillOptions now = new KillOptions();
            now.set_wait_secs(0);
            NimbusClient.withConfiguredClient(nimbus -> nimbus.killTopologyWithOpts(name, now));
        }
    }

    /** Prints the lines of a file as they come, until there are so many. */
    static void follow(Path results, int lines) throws Exception {
        long heardNs = System.nanoTime();
        for (int printed = 0; printed < lines; Thread.sleep(200)) {
            List<String> found = Files.exists(results) ? Files.readAllLines(results) : List.of();
            for (; printed < found.size(); printed++) {
                System.out.println(found.get(printed));
                if (found.get(printed).startsWith("failed")) throw new IllegalStateException("a point has failed");
                heardNs = System.nanoTime();
            }
            long silence = (System.nanoTime() - heardNs) / 1_000_000_000L;
            if (silence > START_S + SILENCE_S) throw new IllegalStateException("no word from the source for " + silence + " s");
        }
    }

    /** Nimbus listens before it leads. */
    static void awaitLeader() throws Exception {
        for (int tries = 0; ; tries++) {
            try {
                NimbusClient.withConfiguredClient(nimbus -> nimbus.getLeader());
                return;
            } catch (RuntimeException error) {
                if (tries == START_S) throw error;
            }
            Thread.sleep(1000);
        }
    }

    public static void main(String[] given) throws Exception {
        if (given.length < 3) {
            System.err.println("usage: BroadcastStorm SLOTS FOLDER TASKS,SIZE,SINGLES,SINGLE_S,MANY ...");
            System.exit(2);
        }
        Map<Integer, List<Point>> byTasks = new LinkedHashMap<>();
        for (String text : Arrays.asList(given).subList(2, given.length)) {
            String[] words = text.split(",");
            Point point = new Point(Integer.parseInt(words[1]), Integer.parseInt(words[2]), Double.parseDouble(words[3]), Integer.parseInt(words[4]));
            byTasks.computeIfAbsent(Integer.valueOf(words[0]), any -> new ArrayList<>()).add(point);
        }
        try {
            awaitLeader();
            for (Map.Entry<Integer, List<Point>> of : byTasks.entrySet())
                measure(Integer.parseInt(given[0]), of.getKey(), of.getValue(), Path.of(given[1], "found-" + of.getKey()));
        } catch (Exception error) {
            System.out.println("Storm: " + error.getMessage());
            System.exit(1);
        }
        System.exit(0);
    }
}

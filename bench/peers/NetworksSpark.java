/* Graph kernels with Spark's GraphX, local[THREADS]: the same links as the other systems.
 *
 *   spark-submit --class NetworksSpark ... THREADS FOLDER NODES SOURCE KERNELS ENOUGH_S
 *
 * FOLDER is written by `networks.py`; KERNELS are names with commas in between. Kernels are GraphX's own (`lib`), as it runs them; shortest paths
 * with lengths, which it lacks, are its guide's program on Pregel. Graphs are cached before the clock starts, one partition for each thread.
 *
 * Prints {"kernel_s": by kernel the median seconds of some runs, "failures": {}}. What each found is left in FOLDER as
 * graphx-THREADS-KERNEL.npy. */
import java.io.IOException;
import java.io.Serializable;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.graphx.Edge;
import org.apache.spark.graphx.EdgeDirection;
import org.apache.spark.graphx.EdgeTriplet;
import org.apache.spark.graphx.Graph;
import org.apache.spark.graphx.GraphLoader;
import org.apache.spark.graphx.PartitionStrategy;
import org.apache.spark.graphx.Pregel;
import org.apache.spark.graphx.lib.ConnectedComponents;
import org.apache.spark.graphx.lib.PageRank;
import org.apache.spark.graphx.lib.ShortestPaths;
import org.apache.spark.graphx.lib.TriangleCount;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.storage.StorageLevel;
import scala.Function1;
import scala.Function2;
import scala.Function3;
import scala.Tuple2;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;

public final class NetworksSpark {
    static final int REPEATS_MAX = 5;
    static final double ALPHA = 0.85, TOLERANCE = 1e-6;

    /** Doubles or longs, as eight bytes each, of a .npy file; they stand behind a header that ends with a newline. */
    static ByteBuffer read(Path path) throws IOException {
        try (FileChannel file = FileChannel.open(path)) {
            ByteBuffer all = file.map(FileChannel.MapMode.READ_ONLY, 0, file.size()).order(ByteOrder.LITTLE_ENDIAN);
            return all.position(10 + all.getShort(8)).slice().order(ByteOrder.LITTLE_ENDIAN);
        }
    }

    static void write(Path path, double[] values) throws IOException {
        String head = "{'descr': '<f8', 'fortran_order': False, 'shape': (" + values.length + ",), }";
        head += " ".repeat(63 - (10 + head.length()) % 64) + "\n";
        ByteBuffer out = ByteBuffer.allocate(10 + head.length() + 8 * values.length).order(ByteOrder.LITTLE_ENDIAN);
        out.put(new byte[] {(byte) 0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0}).putShort((short) head.length());
        out.put(head.getBytes(StandardCharsets.US_ASCII));
        for (double value : values) out.putDouble(value);
        Files.write(path, out.array());
    }

    /** A class of numbers, which Scala keeps in arrays of primitives and Java sees boxed. */
    @SuppressWarnings("unchecked")
    static <T> ClassTag<T> primitive(ClassTag<Object> tag) {
        return (ClassTag<T>) (ClassTag<?>) tag;
    }

    static final ClassTag<Double> DOUBLES = primitive((ClassTag<Object>) (ClassTag<?>) ClassTag$.MODULE$.Double());
    static final ClassTag<Object> ANY = ClassTag$.MODULE$.apply(Object.class);

    final JavaSparkContext context;
    final int threads, nodes;

    NetworksSpark(JavaSparkContext context, int threads, int nodes) {
        this.context = context;
        this.threads = threads;
        this.nodes = nodes;
    }

    /** A cached graph of pairs, with a length for each, or 1. All nodes have the value 0. */
    Graph<Double, Double> graph(ByteBuffer pairs, ByteBuffer lengths) {
        List<Edge<Double>> edges = new ArrayList<>();
        for (int at = 0; at < pairs.capacity() / 16; at++) {
            double length = lengths == null ? 1.0 : lengths.getDouble(8 * at);
            edges.add(new Edge<>(pairs.getLong(16 * at), pairs.getLong(16 * at + 8), length));
        }
        return of(edges);
    }

    Graph<Double, Double> of(List<Edge<Double>> edges) {
        StorageLevel memory = StorageLevel.MEMORY_ONLY();
        Graph<Double, Double> made =
                Graph.fromEdges(context.parallelize(edges, threads).rdd(), 0.0, memory, memory, DOUBLES, DOUBLES);
        made.cache();
        counts(made);
        return made;
    }

    static double[] counts(Graph<?, ?> graph) {
        return new double[] {graph.vertices().count(), graph.edges().count()};
    }

    /** What has to be computed is computed: the vertices of a result, by node. */
    @SuppressWarnings("unchecked")
    static <V> List<Tuple2<Object, V>> all(Graph<V, ?> graph) {
        return Arrays.asList((Tuple2<Object, V>[]) graph.vertices().collect());
    }

    <V> double[] byNode(List<Tuple2<Object, V>> values, double otherwise, Function<V, Double> value) {
        double[] found = new double[nodes];
        Arrays.fill(found, otherwise);
        for (Tuple2<Object, V> one : values) {
            Double is = value.apply(one._2);
            found[(int) (long) (Long) one._1] = is == null ? otherwise : is;
        }
        return found;
    }

    /** Shortest paths, as in the GraphX programming guide. */
    static Graph<Double, Double> paths(Graph<Double, Double> graph, long source) {
        Function2<Object, Double, Double> first =
                (Function2<Object, Double, Double> & Serializable) (node, old) -> (Long) node == source ? 0.0 : Double.POSITIVE_INFINITY;
        Graph<Double, Double> start = graph.mapVertices(first, DOUBLES, null);
        Function3<Object, Double, Double, Double> nearer =
                (Function3<Object, Double, Double, Double> & Serializable) (node, old, said) -> Math.min(old, said);
        Function1<EdgeTriplet<Double, Double>, Iterator<Tuple2<Object, Double>>> send =
                (Function1<EdgeTriplet<Double, Double>, Iterator<Tuple2<Object, Double>>> & Serializable) link -> {
                    double through = link.srcAttr() + link.attr;
                    List<Tuple2<Object, Double>> messages =
                            through < link.dstAttr() ? List.of(new Tuple2<Object, Double>(link.dstId(), through)) : List.of();
                    return CollectionConverters.asScala(messages.iterator());
                };
        Function2<Double, Double, Double> least = (Function2<Double, Double, Double> & Serializable) Math::min;
        return Pregel.apply(start, Double.POSITIVE_INFINITY, Integer.MAX_VALUE, EdgeDirection.Out(), nearer, send, least,
                DOUBLES, DOUBLES, DOUBLES);
    }

    static double[] sizes(List<Tuple2<Object, Object>> labels) {
        Map<Object, Long> counts = labels.stream().collect(Collectors.groupingBy(one -> one._2, Collectors.counting()));
        return new double[] {counts.size(), counts.values().stream().mapToLong(n -> n).max().orElse(0)};
    }

    record Kernel<R>(Supplier<R> run, Function<R, double[]> answer) {
        /** The median of a few runs behind a first one, while they are cheap, and what the last one found. */
        double timed(Path answers, double enoughS) throws IOException {
            List<Double> seconds = new ArrayList<>();
            double total = 0;
            R found = null;
            while (seconds.size() <= REPEATS_MAX && (seconds.isEmpty() || total < enoughS)) {
                long startNs = System.nanoTime();
                found = run.get();
                seconds.add((System.nanoTime() - startNs) / 1e9);
                total += seconds.get(seconds.size() - 1);
            }
            write(answers, answer.apply(found));
            List<Double> later = new ArrayList<>(seconds.size() > 1 ? seconds.subList(1, seconds.size()) : seconds);
            later.sort(null);
            return (later.get(later.size() / 2) + later.get((later.size() - 1) / 2)) / 2;
        }
    }

    Map<String, Kernel<?>> kernels(Path folder, long source) throws IOException {
        ByteBuffer links = read(folder.resolve("links.npy")), pairs = read(folder.resolve("undirected.npy"));
        Graph<Double, Double> plain = graph(links, null), both = graph(pairs, null);
        Graph<Double, Double> lengths = graph(links, read(folder.resolve("lengths.npy")));
        List<Edge<Double>> edges = new ArrayList<>();
        for (int at = 0; at < links.capacity() / 16; at++)
            edges.add(new Edge<>(links.getLong(16 * at), links.getLong(16 * at + 8), 1.0));
        StorageLevel memory = StorageLevel.MEMORY_ONLY();
        // It counts triangles only where links of two nodes lie in the same partition.
        Graph<Double, Double> dealt = both.partitionBy(PartitionStrategy.EdgePartition2D$.MODULE$, threads);
        dealt.cache();
        counts(dealt);
        Graph<Double, Double> turned = plain.reverse();
        turned.cache();
        counts(turned);
        Map<String, Kernel<?>> known = new LinkedHashMap<>();
        known.put("read", new Kernel<>(
                () -> counts(GraphLoader.edgeListFile(context.sc(), folder.resolve("links.txt").toString(), false, threads, memory, memory)),
                found -> found));
        known.put("build", new Kernel<>(() -> counts(of(edges)), found -> found));
        known.put("pagerank", new Kernel<>(
                () -> all(PageRank.runUntilConvergence(plain, TOLERANCE, 1 - ALPHA, DOUBLES, DOUBLES)),
                // Its scores add up to the number of nodes.
                found -> byNode(found, 0, score -> (Double) score / nodes)));
        // It finds how far nodes are from landmarks, along links.
        known.put("bfs", new Kernel<>(
                () -> all(ShortestPaths.run(turned, CollectionConverters.asScala(List.<Object>of(source)).toSeq(), DOUBLES)),
                found -> byNode(found, Double.POSITIVE_INFINITY, far -> {
                    scala.Option<Object> steps = far.get(source);
                    return steps.isEmpty() ? null : (double) (Integer) steps.get();
                })));
        known.put("paths", new Kernel<>(() -> all(paths(lengths, source)), found -> byNode(found, Double.POSITIVE_INFINITY, far -> far)));
        known.put("components", new Kernel<>(
                () -> all(ConnectedComponents.run(both, Integer.MAX_VALUE, DOUBLES, DOUBLES)), found -> sizes(found)));
        known.put("triangles", new Kernel<>(
                () -> all(TriangleCount.run(dealt, DOUBLES, DOUBLES)),
                found -> new double[] {found.stream().mapToLong(one -> (Integer) one._2).sum() / 3}));
        return known;
    }

    public static void main(String[] given) throws Exception {
        int threads = Integer.parseInt(given[0]), nodes = Integer.parseInt(given[2]);
        Path folder = Path.of(given[1]);
        double enoughS = Double.parseDouble(given[5]);
        SparkSession spark = SparkSession.builder().master("local[" + threads + "]").appName("bench")
                .config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
                .config("spark.driver.bindAddress", "127.0.0.1").config("spark.log.level", "ERROR")
                .config("spark.default.parallelism", Integer.toString(threads)).getOrCreate();
        List<String> seconds = new ArrayList<>(), failures = new ArrayList<>();
        try (JavaSparkContext context = new JavaSparkContext(spark.sparkContext())) {
            Map<String, Kernel<?>> known = new NetworksSpark(context, threads, nodes).kernels(folder, Long.parseLong(given[3]));
            for (String name : given[4].split(",")) {
                if (!known.containsKey(name)) continue;
                try {
                    double took = known.get(name).timed(folder.resolve("graphx-" + threads + "-" + name + ".npy"), enoughS);
                    seconds.add(String.format("\"%s\": %.9g", name, took));
                } catch (Exception | StackOverflowError error) {
                    failures.add(String.format("\"%s\": \"%s\"", name, error.toString().replaceAll("[\"\\\\\\p{Cntrl}]", " ")));
                }
            }
        }
        System.out.printf("{\"kernel_s\": {%s}, \"failures\": {%s}}%n", String.join(", ", seconds), String.join(", ", failures));
    }
}

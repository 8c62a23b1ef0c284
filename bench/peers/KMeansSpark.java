/* K-means with Spark's MLlib, local[2]: the same rows, and as many iterations as the other systems.
 *
 *   spark-submit --class KMeansSpark ... mllib|ml ROWS.npy CENTRES.npy ITERATIONS OUT.npy float32|float64 ROWS COLUMNS K
 *
 * `mllib` is the API on RDDs, the one that can be given first centres. `ml` is the API on DataFrames, which can multiply blocks of rows
 * with the centres by BLAS, but begins with rows that it draws itself; the faster of its solvers, by row and by block, is found first.
 * Rows are cached as vectors (float64: Spark has no others), one partition for each core, before the clock starts.
 *
 * Prints {"fit_s": seconds of a fit of ITERATIONS, "first_s": of one iteration}; each is the median of some. Writes the final
 * centres as bare numbers. */
import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.IntFunction;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.ml.linalg.SQLDataTypes;
import org.apache.spark.mllib.clustering.KMeans;
import org.apache.spark.mllib.clustering.KMeansModel;
import org.apache.spark.mllib.linalg.Vector;
import org.apache.spark.mllib.linalg.Vectors;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

public final class KMeansSpark {
    static final int CORES = 2, REPEATS_MAX = 5;
    static final double ENOUGH_S = 1.0;

    /** Rows of a .npy file in C order, as doubles; its numbers stand behind a header that ends with a newline. */
    static List<double[]> read(String path, boolean single, int from, int to, int columns) throws IOException {
        List<double[]> rows = new ArrayList<>(to - from);
        try (RandomAccessFile file = new RandomAccessFile(path, "r")) {
            byte[] head = new byte[10];
            file.readFully(head);
            long start = 10 + ((head[8] & 0xff) | (head[9] & 0xff) << 8);
            int width = single ? Float.BYTES : Double.BYTES;
            ByteBuffer one = ByteBuffer.allocate(columns * width * 1024).order(ByteOrder.LITTLE_ENDIAN);
            FileChannel channel = file.getChannel().position(start + (long) from * columns * width);
            for (int at = from; at < to; ) {
                int count = Math.min(1024, to - at);
                one.clear().limit(count * columns * width);
                while (one.hasRemaining()) if (channel.read(one) < 0) throw new IOException(path + " is too short");
                one.flip();
                for (int i = 0; i < count; i++, at++) {
                    double[] row = new double[columns];
                    for (int j = 0; j < columns; j++) row[j] = single ? one.getFloat() : one.getDouble();
                    rows.add(row);
                }
            }
        }
        return rows;
    }

    record Fit(double seconds, double[][] centres) {}

    /** As in the worker in Python: until a second has passed, at most five times. */
    static Fit timed(IntFunction<double[][]> fit, int iterations) {
        List<Double> seconds = new ArrayList<>();
        double[][] centres;
        double total = 0;
        do {
            long startNs = System.nanoTime();
            centres = fit.apply(iterations);
            seconds.add((System.nanoTime() - startNs) / 1e9);
            total += seconds.get(seconds.size() - 1);
        } while (total < ENOUGH_S && seconds.size() < REPEATS_MAX);
        seconds.sort(null);
        int half = seconds.size() / 2;
        return new Fit((seconds.get(half) + seconds.get((seconds.size() - 1) / 2)) / 2, centres);
    }

    static void ranAll(int done, int iterations) {
        if (done != iterations) {
            System.out.println("ValueError: converged after " + done + " iterations: the comparison needs data that takes longer");
            System.exit(1);
        }
    }

    static IntFunction<double[][]> mllib(JavaRDD<double[]> rows, List<double[]> first) {
        JavaRDD<Vector> vectors = rows.map(Vectors::dense).cache();
        vectors.count();
        KMeansModel start = new KMeansModel(first.stream().map(Vectors::dense).toArray(Vector[]::new));
        return iterations -> {
            KMeans means = new KMeans().setK(first.size()).setMaxIterations(iterations).setEpsilon(0).setInitialModel(start);
            KMeansModel model = means.run(vectors.rdd());
            ranAll(model.numIter(), iterations);
            return Arrays.stream(model.clusterCenters()).map(Vector::toArray).toArray(double[][]::new);
        };
    }

    static IntFunction<double[][]> ml(SparkSession spark, JavaRDD<double[]> rows, int k) {
        StructType type = new StructType(new StructField[] {
            new StructField("features", SQLDataTypes.VectorType(), false, Metadata.empty())
        });
        JavaRDD<Row> vectors = rows.map(row -> RowFactory.create(org.apache.spark.ml.linalg.Vectors.dense(row)));
        Dataset<Row> frame = spark.createDataFrame(vectors, type).cache();
        frame.count();
        String best = "";
        double leastS = Double.MAX_VALUE;
        for (String solver : new String[] {"row", "block"}) {
            fit(frame, k, solver, 1);
            long startNs = System.nanoTime();
            fit(frame, k, solver, 2);
            double seconds = (System.nanoTime() - startNs) / 1e9;
            if (seconds < leastS) {
                leastS = seconds;
                best = solver;
            }
        }
        String solver = best;
        return iterations -> fit(frame, k, solver, iterations);
    }

    static double[][] fit(Dataset<Row> frame, int k, String solver, int iterations) {
        var means = new org.apache.spark.ml.clustering.KMeans()
                .setK(k).setMaxIter(iterations).setTol(0).setInitMode("random").setSeed(1).setSolver(solver);
        var model = means.fit(frame);
        ranAll(model.summary().numIter(), iterations);
        return Arrays.stream(model.clusterCenters()).map(org.apache.spark.ml.linalg.Vector::toArray).toArray(double[][]::new);
    }

    public static void main(String[] given) throws Exception {
        String api = given[0], path = given[1];
        boolean single = given[5].equals("float32");
        int iterations = Integer.parseInt(given[3]), count = Integer.parseInt(given[6]), columns = Integer.parseInt(given[7]);
        int k = Integer.parseInt(given[8]);
        SparkSession spark = SparkSession.builder().master("local[" + CORES + "]").appName("bench")
                .config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
                .config("spark.driver.bindAddress", "127.0.0.1").config("spark.log.level", "ERROR").getOrCreate();
        try (JavaSparkContext context = new JavaSparkContext(spark.sparkContext())) {
            List<Integer> parts = new ArrayList<>();
            for (int i = 0; i < CORES; i++) parts.add(i);
            JavaRDD<double[]> rows = context.parallelize(parts, CORES).flatMap(part -> read(path, single,
                    (int) ((long) count * part / CORES), (int) ((long) count * (part + 1) / CORES), columns).iterator());
            List<double[]> first = read(given[2], single, 0, k, columns);
            IntFunction<double[][]> fit = api.equals("mllib") ? mllib(rows, first) : ml(spark, rows, k);
            fit.apply(1); // warm-up
            fit.apply(Math.min(iterations, 3)); // compiles what each further iteration runs
            double firstS = timed(fit, 1).seconds;
            Fit all = timed(fit, iterations);
            ByteBuffer out = ByteBuffer.allocate(k * columns * (single ? 4 : 8)).order(ByteOrder.LITTLE_ENDIAN);
            for (double[] centre : all.centres) {
                for (double value : centre) {
                    if (single) out.putFloat((float) value);
                    else out.putDouble(value);
                }
            }
            Files.write(Path.of(given[4]), out.array());
            System.out.printf("{\"fit_s\": %.9g, \"first_s\": %.9g}%n", all.seconds, firstS);
        }
    }
}

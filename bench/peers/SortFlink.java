/* Records of 100 bytes sorted by their first ten, from the files of one folder into another, with Apache Flink's DataStream API.
 *
 *   java -cp CLASSES:JARS SortFlink FOLDER MANAGED_MIB
 *
 * FOLDER has `few/records` and `many/records`; sorted records go to `few-sorted` and `sorted`. Two sources each read half of the files,
 * records go by their key to one of two tasks (split at the median of a sample), each sorts its share with Flink's external sort
 * (`fullWindowPartition().sortPartition`) and writes a file. The job runs as a pipeline: nothing is written between the sources
 * and the sort. MANAGED_MIB is the memory of both sorts together; what does not fit is spilled to FOLDER/spill.
 *
 * A record is one value with a normalized key of its own, so that sorting compares bytes and takes no record apart.
 *
 * Prints {"ready": true} when the few records are sorted, and {"query_s": seconds} of the many. */
import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Stream;
import org.apache.flink.api.common.functions.RichFlatMapFunction;
import org.apache.flink.api.common.operators.Order;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.api.java.tuple.Tuple1;
import org.apache.flink.api.java.typeutils.TupleTypeInfo;
import org.apache.flink.api.java.typeutils.ValueTypeInfo;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.CoreOptions;
import org.apache.flink.configuration.JobManagerOptions;
import org.apache.flink.configuration.MemorySize;
import org.apache.flink.configuration.TaskManagerOptions;
import org.apache.flink.core.memory.DataInputView;
import org.apache.flink.core.memory.DataOutputView;
import org.apache.flink.core.memory.MemorySegment;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.types.CopyableValue;
import org.apache.flink.types.NormalizableKey;
import org.apache.flink.util.Collector;

@SuppressWarnings("serial") // functions travel only within this program
public final class SortFlink {
    static final int BYTES = 100, KEY = 10, SLOTS = 2, BUFFER = 1 << 20, SAMPLE = 10_000;

    public static final class Record implements CopyableValue<Record>, NormalizableKey<Record> {
        final byte[] bytes = new byte[BYTES];

        @Override
        public int getBinaryLength() {
            return BYTES;
        }

        @Override
        public void copyTo(Record target) {
            System.arraycopy(bytes, 0, target.bytes, 0, BYTES);
        }

        @Override
        public Record copy() {
            Record made = new Record();
            copyTo(made);
            return made;
        }

        @Override
        public void copy(DataInputView source, DataOutputView target) throws IOException {
            target.write(source, BYTES);
        }

        @Override
        public void write(DataOutputView out) throws IOException {
            out.write(bytes);
        }

        @Override
        public void read(DataInputView in) throws IOException {
            in.readFully(bytes);
        }

        @Override
        public int getMaxNormalizedKeyLen() {
            return KEY;
        }

        @Override
        public void copyNormalizedKey(MemorySegment memory, int offset, int length) {
            memory.put(offset, bytes, 0, Math.min(length, KEY));
            for (int i = KEY; i < length; i++) memory.put(offset + i, (byte) 0);
        }

        @Override
        public int compareTo(Record other) {
            return Arrays.compareUnsigned(bytes, 0, KEY, other.bytes, 0, KEY);
        }
    }

    static final TypeInformation<Tuple1<Record>> TYPE = new TupleTypeInfo<>(new ValueTypeInfo<>(Record.class));

    static List<String> files(Path folder) throws IOException {
        try (Stream<Path> found = Files.list(folder.resolve("records"))) {
            return found.map(Path::toString).sorted().toList();
        }
    }

    /** The median of the first two bytes of the keys at the beginning of each file. */
    static int middle(List<String> files) throws IOException {
        List<Integer> found = new ArrayList<>();
        for (String file : files) {
            try (InputStream in = new BufferedInputStream(Files.newInputStream(Path.of(file)), BUFFER)) {
                byte[] record = new byte[BYTES];
                for (int i = 0; i < SAMPLE / files.size() && in.readNBytes(record, 0, BYTES) == BYTES; i++) found.add(prefix(record));
            }
        }
        found.sort(null);
        return found.isEmpty() ? 0 : found.get(found.size() / 2);
    }

    static int prefix(byte[] record) {
        return (record[0] & 0xff) << 8 | record[1] & 0xff;
    }

    static final class Source extends RichFlatMapFunction<Integer, Tuple1<Record>> {
        final ArrayList<String> files;

        Source(List<String> files) {
            this.files = new ArrayList<>(files);
        }

        @Override
        public void flatMap(Integer start, Collector<Tuple1<Record>> out) throws Exception {
            Tuple1<Record> record = new Tuple1<>(new Record());
            for (int at = getRuntimeContext().getTaskInfo().getIndexOfThisSubtask(); at < files.size(); at += SLOTS) {
                try (InputStream in = new BufferedInputStream(Files.newInputStream(Path.of(files.get(at))), BUFFER)) {
                    while (in.readNBytes(record.f0.bytes, 0, BYTES) == BYTES) out.collect(record);
                }
            }
        }
    }

    static final class Target implements Sink<Tuple1<Record>> {
        final File folder;

        Target(Path folder) {
            this.folder = folder.toFile();
        }

        @Override
        public SinkWriter<Tuple1<Record>> createWriter(WriterInitContext context) throws IOException {
            String name = String.valueOf(context.getTaskInfo().getIndexOfThisSubtask());
            OutputStream out = new BufferedOutputStream(Files.newOutputStream(folder.toPath().resolve(name)), BUFFER);
            return new SinkWriter<>() {
                @Override
                public void write(Tuple1<Record> record, Context context) throws IOException {
                    out.write(record.f0.bytes);
                }

                @Override
                public void flush(boolean endOfInput) throws IOException {
                    out.flush();
                }

                @Override
                public void close() throws IOException {
                    out.close();
                }
            };
        }
    }

    static double run(MiniCluster cluster, Path from, Path to) throws Exception {
        long startNs = System.nanoTime();
        Files.createDirectory(to);
        List<String> files = files(from);
        int middle = middle(files);
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment();
        env.setParallelism(SLOTS);
        env.getConfig().enableObjectReuse();
        env.setBufferTimeout(-1); // buffers leave when they are full
        env.fromData(0, 1)
                .rebalance() // one element to each source
                .flatMap(new Source(files))
                .returns(TYPE)
                .partitionCustom((half, copies) -> half, record -> prefix(record.f0.bytes) < middle ? 0 : 1)
                .fullWindowPartition()
                .sortPartition("f0", Order.ASCENDING) // by its name: Flink 2.3 refuses the number of the first field
                .sinkTo(new Target(to));
        cluster.executeJobBlocking(env.getStreamGraph().getJobGraph());
        return (System.nanoTime() - startNs) / 1e9;
    }

    public static void main(String[] given) throws Exception {
        if (given.length != 2) {
            System.err.println("usage: SortFlink FOLDER MANAGED_MIB");
            System.exit(2);
        }
        Path folder = Path.of(given[0]), spill = folder.resolve("spill");
        Files.createDirectories(spill);
        Configuration configuration = new Configuration();
        configuration.set(CoreOptions.TMP_DIRS, spill.toString());
        configuration.set(TaskManagerOptions.MANAGED_MEMORY_SIZE, MemorySize.ofMebiBytes(Long.parseLong(given[1])));
        configuration.set(TaskManagerOptions.NETWORK_MEMORY_MIN, MemorySize.ofMebiBytes(32));
        configuration.set(TaskManagerOptions.NETWORK_MEMORY_MAX, MemorySize.ofMebiBytes(32));
        // Nothing listens to other hosts.
        configuration.set(JobManagerOptions.BIND_HOST, "localhost");
        configuration.set(TaskManagerOptions.HOST, "localhost");
        configuration.set(TaskManagerOptions.BIND_HOST, "localhost");
        MiniClusterConfiguration settings = new MiniClusterConfiguration.Builder()
                .setConfiguration(configuration)
                .setNumTaskManagers(1)
                .setNumSlotsPerTaskManager(SLOTS)
                .build();
        try (MiniCluster cluster = new MiniCluster(settings)) {
            cluster.start();
            run(cluster, folder.resolve("few"), folder.resolve("few-sorted"));
            System.out.println("{\"ready\": true}");
            System.out.printf("{\"query_s\": %.9g}%n", run(cluster, folder.resolve("many"), folder.resolve("sorted")));
        }
    }
}

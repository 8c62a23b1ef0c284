/* Nexmark with Apache Flink's SQL: queries 0 to 8, but for 6, over events that are made while the query runs.
 *
 *   java -cp CLASSES:JARS NexmarkFlink QUERY EVENTS STEP_US LETTERS
 *
 * The events are those of `tidemill.apps.nexmark_events`, by the same arithmetic on their numbers; what is printed: see
 * `harness/nexmark.py`. A mini-cluster of one task manager with two slots. One source makes all kinds of events that the query reads,
 * and of those only the columns that it reads, so that neither kind runs ahead of the other; texts are slices of one array, not copied. */
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import java.util.zip.CRC32;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
import org.apache.flink.core.memory.MemorySegment;
import org.apache.flink.core.memory.MemorySegmentFactory;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.SingleOutputStreamOperator;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.operators.AbstractStreamOperator;
import org.apache.flink.streaming.api.operators.OneInputStreamOperator;
import org.apache.flink.streaming.api.watermark.Watermark;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.Table;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.table.api.config.ExecutionConfigOptions;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.data.TimestampData;
import org.apache.flink.table.data.binary.BinaryStringData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.DataType;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.table.types.utils.DataTypeUtils;
import org.apache.flink.types.Row;
import org.apache.flink.types.RowKind;
import org.apache.flink.util.OutputTag;

@SuppressWarnings({"serial", "try"}) // functions travel only within this program, which nobody interrupts
public final class NexmarkFlink {
    static final int SLOTS = 2, BATCH = 1000, WARM_UPS = 4;
    static final long WARM_UP_EVENTS = 1_000_000;

    // --- events: each constant and each expression as in `tidemill.apps.nexmark_events` ------------------------------------
    static final long START_US = 1_767_225_600_000_000L;
    static final int ALL = 50, PERSONS = 1, AUCTIONS = 3, FIRST_ID = 1000, FIRST_CATEGORY = 10, CATEGORIES = 5;
    static final int ACTIVE_PERSONS = 1000, OPEN_AUCTIONS = 100, LEAD = 10, HOT_OF = 100;
    static final int HOT_SELLERS = 4, HOT_AUCTIONS = 2, HOT_BIDDERS = 4;
    static MemorySegment[] letters; // which Python's generator of random numbers has drawn; the harness gives them
    static final BinaryStringData[] CITIES =
            texts("Astoria,Casper,Eureka,Flagstaff,Fresno,Laramie,Medford,Moscow,Spokane,Tucson".split(","));
    static final BinaryStringData[] STATES = texts("AZ,CA,ID,OR,WA,WY".split(","));
    static final BinaryStringData[] NAMES = names();
    static final int[] PRICES = new int[1 << 20];

    static {
        for (int bits = 0; bits < PRICES.length; bits++) PRICES[bits] = (int) Math.round(100 * Math.pow(10, 6.0 * bits / PRICES.length));
    }

    static BinaryStringData[] texts(String[] words) {
        return Arrays.stream(words).map(BinaryStringData::fromString).toArray(BinaryStringData[]::new);
    }

    static BinaryStringData[] names() {
        List<String> names = new ArrayList<>();
        for (String first : "Ada,Alan,Barbara,Edsger,Frances,Grace,John,Leslie,Margaret,Niklaus,Tony".split(","))
            for (String last : "Baker,Carter,Cooper,Fisher,Mason,Miller,Potter,Taylor,Weaver".split(",")) names.add(first + " " + last);
        return texts(names.toArray(new String[0]));
    }

    enum Kind { PERSON, AUCTION, BID }

    /** An event's number, and what is drawn from it. */
    static final class Event {
        long number, epoch, place, r, s, timeUs;

        Kind at(long number, long stepUs) {
            this.number = number;
            epoch = number / ALL;
            place = number % ALL;
            timeUs = START_US + number * stepUs;
            return place < PERSONS ? Kind.PERSON : place < PERSONS + AUCTIONS ? Kind.AUCTION : Kind.BID;
        }

        void draw() {
            long m = (number + 1) * -7046029254386353131L;
            r = (m ^ (m >> 32)) * -4658895280553007687L;
            s = (r ^ (r >> 29)) * 7046029254386353131L;
        }

        int r(int skip, int count) {
            return (int) (r >> skip) & ((1 << count) - 1);
        }

        int s(int skip, int count) {
            return (int) (s >> skip) & ((1 << count) - 1);
        }

        static StringData text(int at, int length) {
            return BinaryStringData.fromAddress(letters, at, length);
        }

        long person(int hot, int chosen, int hotPlace) {
            long active = Math.min(epoch + 1, ACTIVE_PERSONS);
            return FIRST_ID + (hot > 0 ? epoch / HOT_OF * HOT_OF + hotPlace : epoch + 1 - active + chosen % (active + LEAD));
        }

        long auction() {
            long last = AUCTIONS * epoch + AUCTIONS - 1, open = Math.min(last, OPEN_AUCTIONS);
            return FIRST_ID + (r(0, 4) % HOT_AUCTIONS > 0 ? last / HOT_OF * HOT_OF : last - open + r(4, 12) % (open + 1 + LEAD));
        }
    }

    static TimestampData timestamp(long micros) {
        return TimestampData.fromEpochMillis(micros / 1000, (int) (micros % 1000) * 1000);
    }

    interface Value extends java.io.Serializable {
        Object of(Event event);
    }

    /** A column of a kind of events: those that some query reads. */
    record Column(String name, DataType type, Value value) {}

    static final DataType LONG = DataTypes.BIGINT().notNull(), TEXT = DataTypes.STRING().notNull();
    static final DataType TIME = DataTypes.TIMESTAMP(6).notNull();
    static final Column ROWTIME =
            new Column("t", DataTypes.TIMESTAMP(3).notNull(), event -> TimestampData.fromEpochMillis(event.timeUs / 1000));
    static final Column DATE_TIME = new Column("date_time", TIME, event -> timestamp(event.timeUs));

    static Map<Kind, List<Column>> columns(long stepUs) {
        long lengthUs = lengthUs(stepUs);
        Map<Kind, List<Column>> columns = new EnumMap<>(Kind.class);
        columns.put(Kind.PERSON, List.of(ROWTIME, DATE_TIME,
                new Column("id", LONG, event -> FIRST_ID + event.epoch),
                new Column("name", TEXT, event -> NAMES[event.r(8, 12) % 11 * 9 + event.r(20, 12) % 9]),
                new Column("city", TEXT, event -> CITIES[event.s(16, 12) % CITIES.length]),
                new Column("state", TEXT, event -> STATES[event.s(28, 12) % STATES.length])));
        columns.put(Kind.AUCTION, List.of(ROWTIME, DATE_TIME,
                new Column("id", LONG, event -> FIRST_ID + AUCTIONS * event.epoch + event.place - PERSONS),
                new Column("expires", TIME, event -> timestamp(event.timeUs + 1000 + ((event.s(20, 20) * lengthUs) >> 20))),
                new Column("seller", LONG, event -> event.person(event.r(40, 4) % HOT_SELLERS, event.r(44, 16), 0)),
                new Column("category", LONG, event -> (long) FIRST_CATEGORY + event.s(40, 12) % CATEGORIES)));
        columns.put(Kind.BID, List.of(ROWTIME, DATE_TIME,
                new Column("auction", LONG, Event::auction),
                new Column("bidder", LONG, event -> event.person(event.r(16, 4) % HOT_BIDDERS, event.r(20, 16), 1)),
                new Column("price", LONG, event -> (long) PRICES[event.r(36, 20)]),
                new Column("extra", TEXT, event -> Event.text(event.r(10, 10), 52 + event.r(56, 5)))));
        return columns;
    }

    static long lengthUs(long stepUs) {
        return 2 * OPEN_AUCTIONS * ALL / AUCTIONS * stepUs;
    }

    // --- queries -----------------------------------------------------------------------------------------------------------
    /** What a query reads, by kinds, and the query itself. */
    record Query(Map<Kind, String> reads, String sql) {}

    static final String TUMBLE = "TABLE(TUMBLE(TABLE %s, DESCRIPTOR(t), INTERVAL '10' SECOND))";
    static final String MICROS = "CAST(TIMESTAMPDIFF(SECOND, TIMESTAMP '1970-01-01 00:00:00', %s) AS BIGINT) * 1000000";

    static Query query(int number, long stepUs) {
        String bids = TUMBLE.formatted("bid"), start = MICROS.formatted("p.window_start");
        return switch (number) {
            case 0 -> new Query(Map.of(Kind.BID, "auction bidder price date_time extra"),
                    "SELECT auction, bidder, price, date_time, extra FROM bid");
            case 1 -> new Query(Map.of(Kind.BID, "auction bidder price date_time extra"),
                    "SELECT auction, bidder, 0.908e0 * price AS price, date_time, extra FROM bid");
            case 2 -> new Query(Map.of(Kind.BID, "auction price"), "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0");
            case 3 -> new Query(Map.of(Kind.AUCTION, "id seller category", Kind.PERSON, "id name city state"), """
                    SELECT p.name, p.city, p.state, a.id
                    FROM auction a JOIN person p ON a.seller = p.id
                    WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""");
            // Flink's joins are bounded by constants, and its windows go by times of rows alone: the bounds are the longest auction's, the
            // condition stays, and averages are corrected with each bid, as Nexmark has it.
            case 4 -> new Query(Map.of(Kind.AUCTION, "t id category date_time expires", Kind.BID, "t auction price date_time"), """
                    SELECT category, %s / 10000000 * 10000000 AS closing, AVG(CAST(price AS DOUBLE)) AS price
                    FROM (
                        SELECT a.id, a.category, a.expires, MAX(b.price) AS price
                        FROM auction a JOIN bid b ON a.id = b.auction AND b.t BETWEEN a.t AND a.t + INTERVAL '%s' SECOND
                        WHERE b.date_time BETWEEN a.date_time AND a.expires
                        GROUP BY a.id, a.category, a.expires
                    )
                    GROUP BY category, %1$s / 10000000 * 10000000""".formatted(
                    MICROS.formatted("expires"), "%.3f".formatted((lengthUs(stepUs) + 1000) / 1e6 + 0.002)));
            case 5 -> {
                String counts = """
                        (SELECT auction, COUNT(*) AS bids, window_start, window_end
                         FROM TABLE(HOP(TABLE bid, DESCRIPTOR(t), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
                         GROUP BY auction, window_start, window_end)""";
                yield new Query(Map.of(Kind.BID, "t auction"), """
                        SELECT %s, p.auction, p.bids
                        FROM %s p
                        JOIN (SELECT MAX(bids) AS most, window_start, window_end FROM %2$s GROUP BY window_start, window_end) m
                        ON p.window_start = m.window_start AND p.window_end = m.window_end AND p.bids = m.most""".formatted(start, counts));
            }
            case 7 -> new Query(Map.of(Kind.BID, "t auction bidder price date_time"), """
                    SELECT b.auction, b.bidder, b.price, b.date_time
                    FROM (SELECT * FROM %s) b
                    JOIN (SELECT MAX(price) AS price, window_start, window_end FROM %1$s GROUP BY window_start, window_end) m
                    ON b.window_start = m.window_start AND b.window_end = m.window_end AND b.price = m.price""".formatted(bids));
            case 8 -> new Query(Map.of(Kind.PERSON, "t id name", Kind.AUCTION, "t seller"), """
                    SELECT p.id, p.name, %s
                    FROM (SELECT id, name, window_start, window_end FROM %s GROUP BY id, name, window_start, window_end) p
                    JOIN (SELECT seller, window_start, window_end FROM %s GROUP BY seller, window_start, window_end) a
                    ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end""".formatted(
                    start, TUMBLE.formatted("person"), TUMBLE.formatted("auction")));
            default -> throw new IllegalArgumentException("no query " + number);
        };
    }

    // --- source ------------------------------------------------------------------------------------------------------------
    /** Makes all events of one source when the one element comes that starts it. Kinds after the first go to side outputs. */
    static final class Source extends AbstractStreamOperator<RowData> implements OneInputStreamOperator<Integer, RowData> {
        final long events, stepUs;
        final Map<Kind, Value[]> values;
        final Map<Kind, OutputTag<RowData>> tags;

        Source(long events, long stepUs, Map<Kind, Value[]> values, Map<Kind, OutputTag<RowData>> tags) {
            this.events = events;
            this.stepUs = stepUs;
            this.values = values;
            this.tags = tags;
        }

        @Override
        public void processElement(StreamRecord<Integer> start) throws Exception {
            int index = getRuntimeContext().getTaskInfo().getIndexOfThisSubtask(), kinds = Kind.values().length;
            Value[][] columns = new Value[kinds][];
            GenericRowData[] rows = new GenericRowData[kinds];
            List<OutputTag<RowData>> sides = new ArrayList<>();
            for (Kind kind : Kind.values()) {
                columns[kind.ordinal()] = values.get(kind);
                if (values.containsKey(kind)) rows[kind.ordinal()] = new GenericRowData(values.get(kind).length);
                sides.add(tags.get(kind));
            }
            ready.countDown();
            ready.await();
            if (index == 0) startNs = System.nanoTime();
            Event event = new Event();
            StreamRecord<RowData> record = new StreamRecord<>(null);
            for (long number = index; number < events; ) {
                for (int sent = 0; sent < BATCH && number < events; sent++, number += SLOTS) {
                    int kind = event.at(number, stepUs).ordinal();
                    Value[] made = columns[kind];
                    if (made == null) continue;
                    event.draw();
                    GenericRowData row = rows[kind];
                    for (int i = 0; i < made.length; i++) row.setField(i, made[i].of(event));
                    record.replace(row, event.timeUs / 1000);
                    OutputTag<RowData> side = sides.get(kind);
                    if (side == null) output.collect(record);
                    else output.collect(side, record);
                }
                output.emitWatermark(new Watermark(event.timeUs / 1000 - 1));
            }
        }
    }

    static void sources(StreamExecutionEnvironment env, StreamTableEnvironment tables, Query query, long events, long stepUs) {
        Map<Kind, List<Column>> all = columns(stepUs);
        Map<Kind, Value[]> values = new EnumMap<>(Kind.class);
        Map<Kind, OutputTag<RowData>> tags = new EnumMap<>(Kind.class);
        Map<Kind, List<Column>> read = new EnumMap<>(Kind.class);
        InternalTypeInfo<RowData> main = null;
        for (Kind kind : new EnumMap<>(query.reads).keySet()) {
            List<String> names = List.of(query.reads.get(kind).split(" "));
            List<Column> columns = all.get(kind).stream().filter(column -> names.contains(column.name)).toList();
            RowType type = (RowType) DataTypes.ROW(columns.stream().map(column -> DataTypes.FIELD(column.name, column.type)).toList())
                    .notNull().getLogicalType();
            read.put(kind, columns);
            values.put(kind, columns.stream().map(Column::value).toArray(Value[]::new));
            if (main == null) main = InternalTypeInfo.of(type);
            else tags.put(kind, new OutputTag<>(kind.name(), InternalTypeInfo.of(type)));
        }
        SingleOutputStreamOperator<RowData> made = env.fromData(0, 1).rebalance() // one element to each source
                .transform("source", main, new Source(events, stepUs, values, tags));
        read.forEach((kind, columns) -> {
            Schema.Builder schema = Schema.newBuilder();
            columns.forEach(column -> schema.column(column.name, column.type));
            if (columns.contains(ROWTIME)) schema.watermark("t", "SOURCE_WATERMARK()");
            DataStream<RowData> rows = tags.containsKey(kind) ? made.getSideOutput(tags.get(kind)) : made;
            tables.createTemporaryView(kind.name().toLowerCase(), rows, schema.build());
        });
    }

    // --- sink --------------------------------------------------------------------------------------------------------------
    static CountDownLatch ready; // of sources and sinks; where they are one thread no sink can wait for a source
    static volatile long startNs, endNs;
    static final AtomicLong rows = new AtomicLong(), digest = new AtomicLong();

    /** A column of a row as a number; the same as `harness/nexmark_worker.py` has for it. */
    static long bits(Object value) {
        if (value instanceof Double number) return Double.doubleToRawLongBits(number);
        if (value instanceof LocalDateTime time) return time.toEpochSecond(ZoneOffset.UTC) * 1_000_000 + time.getNano() / 1000;
        if (value instanceof TimestampData time) return time.getMillisecond() * 1000 + time.getNanoOfMillisecond() / 1000;
        if (value instanceof Number number) return number.longValue();
        CRC32 sum = new CRC32();
        sum.update(value instanceof BinaryStringData text ? text.toBytes() : value.toString().getBytes(StandardCharsets.UTF_8));
        return sum.getValue();
    }

    /** How a sink reads its rows. */
    interface Reader<T> extends java.io.Serializable {
        RowKind kind(T row);

        Object field(T row, int column);
    }

    /** Counts rows, less those that are taken back, and when it shall check adds up what they hold. */
    static final class Count<T> implements Sink<T> {
        final boolean check;
        final int columns;
        final Reader<T> reader;

        Count(boolean check, int columns, Reader<T> reader) {
            this.check = check;
            this.columns = columns;
            this.reader = reader;
        }

        @Override
        public SinkWriter<T> createWriter(WriterInitContext context) throws IOException {
            ready.countDown();
            return new SinkWriter<T>() {
                long count = 0, sum = 0;

                @Override
                public void write(T row, Context context) {
                    RowKind of = reader.kind(row);
                    int sign = of == RowKind.INSERT || of == RowKind.UPDATE_AFTER ? 1 : -1;
                    count += sign;
                    if (!check) return;
                    long hash = 0;
                    for (int i = 0; i < columns; i++) hash = WindowsFlink.mix(hash ^ bits(reader.field(row, i)));
                    sum += sign * hash;
                }

                @Override
                public void flush(boolean endOfInput) {
                    if (!endOfInput) return;
                    endNs = System.nanoTime();
                    rows.addAndGet(count);
                    digest.addAndGet(sum);
                }

                @Override
                public void close() {}
            };
        }
    }

    static final class OfRow implements Reader<Row> {
        @Override
        public RowKind kind(Row row) {
            return row.getKind();
        }

        @Override
        public Object field(Row row, int column) {
            return row.getField(column);
        }
    }

    static final class OfRowData implements Reader<RowData> {
        final RowData.FieldGetter[] getters;

        OfRowData(List<LogicalType> types) {
            getters = new RowData.FieldGetter[types.size()];
            for (int i = 0; i < getters.length; i++) getters[i] = RowData.createFieldGetter(types.get(i), i);
        }

        @Override
        public RowKind kind(RowData row) {
            return row.getRowKind();
        }

        @Override
        public Object field(RowData row, int column) {
            return getters[column].getFieldOrNull(row);
        }
    }

    static void run(MiniCluster cluster, int number, long events, long stepUs, boolean check) throws Exception {
        ready = new CountDownLatch(2 * SLOTS);
        rows.set(0);
        digest.set(0);
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment();
        env.setParallelism(SLOTS);
        env.getConfig().enableObjectReuse();
        env.setBufferTimeout(-1); // buffers leave when they are full
        StreamTableEnvironment tables = StreamTableEnvironment.create(env);
        // As in the benchmark of Flink's community.
        tables.getConfig().set(ExecutionConfigOptions.TABLE_EXEC_MINIBATCH_ENABLED, true);
        tables.getConfig().set(ExecutionConfigOptions.TABLE_EXEC_MINIBATCH_ALLOW_LATENCY, Duration.ofSeconds(2));
        tables.getConfig().set(ExecutionConfigOptions.TABLE_EXEC_MINIBATCH_SIZE, 50_000L);
        Query query = query(number, stepUs);
        sources(env, tables, query, events, stepUs);
        Table answer = tables.sqlQuery(query.sql);
        List<LogicalType> types = answer.getResolvedSchema().getColumnDataTypes().stream().map(DataType::getLogicalType).toList();
        if (number == 4) {
            tables.toChangelogStream(answer).sinkTo(new Count<>(check, types.size(), new OfRow()));
        } else {
            // Rows as they are inside, so that none is converted.
            DataType internal = DataTypeUtils.toInternalDataType(answer.getResolvedSchema().toSinkRowDataType());
            tables.<RowData>toDataStream(answer, internal).sinkTo(new Count<>(check, types.size(), new OfRowData(types)));
        }
        cluster.executeJobBlocking(env.getStreamGraph().getJobGraph());
    }

    public static void main(String[] given) throws Exception {
        int query = Integer.parseInt(given[0]);
        long events = Long.parseLong(given[1]), stepUs = Long.parseLong(given[2]);
        letters = new MemorySegment[] {MemorySegmentFactory.wrap(given[3].getBytes(StandardCharsets.US_ASCII))};
        try (MiniCluster cluster = WindowsFlink.cluster()) {
            for (int i = 0; i < WARM_UPS; i++) run(cluster, query, WARM_UP_EVENTS, stepUs, false);
            run(cluster, query, events, stepUs, true);
            long checked = digest.get();
            run(cluster, query, events, stepUs, false);
            System.out.printf("{\"elapsed_s\": %.9f, \"rows\": %d, \"digest\": \"%s\"}%n",
                    (endNs - startNs) / 1e9, rows.get(), Long.toUnsignedString(checked));
        }
    }
}

// java ExactlyOnce.java BOOTSTRAP APPLICATION DIRECTORY: counts the records of each word.
//
// The topic APPLICATION-in has words as keys. For each record the count of its word, which a store
// keeps, goes to APPLICATION-out. The words pass a repartition topic.
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;

public class ExactlyOnce {
    public static void main(String[] arguments) {
        String application = arguments[1];
        Properties settings = new Properties();
        settings.putAll(Map.of(
            "bootstrap.servers", arguments[0],
            "application.id", application,
            "state.dir", arguments[2],
            "processing.guarantee", "exactly_once_v2",
            "statestore.cache.max.bytes", "0", // so that each record gives a count
            "num.stream.threads", "2",
            "replication.factor", "3",
            "session.timeout.ms", "6000",
            "heartbeat.interval.ms", "1000"));
        var strings = Serdes.String();
        StreamsBuilder builder = new StreamsBuilder();
        builder
            .stream(application + "-in", Consumed.with(strings, strings))
            .groupBy((word, number) -> word, Grouped.with("words", strings, strings))
            .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts"))
            .toStream()
            .mapValues(count -> count.toString())
            .to(application + "-out", Produced.with(strings, strings));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
            return null;
        });
        streams.start();
    }
}

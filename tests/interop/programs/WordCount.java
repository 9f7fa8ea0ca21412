// java WordCount.java BOOTSTRAP APPLICATION DIRECTORY: counts the records of each word.
//
// The topic APPLICATION-words has words as keys and rising numbers as values. A store, with a topic
// for its changes, keeps the count of each word and its last number: a record that is processed
// twice, after a kill, counts once. The words pass a repartition topic; the counts go to
// APPLICATION-counts.
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

public class WordCount {
    public static void main(String[] arguments) {
        String application = arguments[1];
        Properties settings = new Properties();
        settings.putAll(Map.of(
            "bootstrap.servers", arguments[0],
            "application.id", application,
            "state.dir", arguments[2],
            "num.stream.threads", "2",
            "replication.factor", "3",
            "commit.interval.ms", "500",
            "session.timeout.ms", "6000",
            "heartbeat.interval.ms", "1000"));
        var strings = Serdes.String();
        StreamsBuilder builder = new StreamsBuilder();
        builder
            .stream(application + "-words", Consumed.with(strings, strings))
            .groupBy((word, number) -> word, Grouped.with("words", strings, strings))
            .aggregate(
                () -> "0 -1",
                WordCount::counted,
                Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("counts")
                    .withKeySerde(strings)
                    .withValueSerde(strings))
            .toStream()
            .mapValues(state -> state.split(" ")[0])
            .to(application + "-counts", Produced.with(strings, strings));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
            return null;
        });
        streams.start();
    }

    private static String counted(String word, String number, String state) {
        String[] parts = state.split(" ");
        boolean isNew = Long.parseLong(number) > Long.parseLong(parts[1]);
        return isNew ? Long.parseLong(parts[0]) + 1 + " " + number : state;
    }
}

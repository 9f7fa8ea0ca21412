// java Transform.java BOOTSTRAP APPLICATION DIRECTORY: adds one to numbers.
//
// The topic APPLICATION-in has words as keys and numbers as values. Each word and the next number go
// to the same partition of APPLICATION-out, in transactions with the offsets of what was read.
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Transform {
    public static void main(String[] arguments) {
        String bootstrap = arguments[0];
        String application = arguments[1];
        var strings = new StringDeserializer();
        var texts = new StringSerializer();
        Map<String, Object> ofConsumer = Map.of(
            "bootstrap.servers", bootstrap,
            "group.id", application,
            "group.instance.id", application,
            "auto.offset.reset", "earliest",
            "enable.auto.commit", "false",
            "isolation.level", "read_committed",
            "session.timeout.ms", "6000",
            "heartbeat.interval.ms", "1000",
            "max.poll.records", "100");
        Map<String, Object> ofProducer =
            Map.of("bootstrap.servers", bootstrap, "transactional.id", application);
        try (var consumer = new KafkaConsumer<>(ofConsumer, strings, strings);
            var producer = new KafkaProducer<>(ofProducer, texts, texts)) {
            producer.initTransactions();
            consumer.subscribe(List.of(application + "-in"));
            while (true) {
                var records = consumer.poll(Duration.ofMillis(100));
                if (records.isEmpty()) {
                    continue;
                }
                try {
                    transform(application, consumer, producer, records);
                } catch (KafkaException error) {
                    error.printStackTrace();
                    producer.abortTransaction(); // throws if no transaction can follow
                    for (TopicPartition place : records.partitions()) {
                        consumer.seek(place, records.records(place).get(0).offset());
                    }
                }
            }
        }
    }

    private static void transform(
        String application,
        KafkaConsumer<String, String> consumer,
        KafkaProducer<String, String> producer,
        ConsumerRecords<String, String> records) {
        var offsets = new HashMap<TopicPartition, OffsetAndMetadata>();
        producer.beginTransaction();
        for (var one : records) {
            String number = Long.toString(Long.parseLong(one.value()) + 1);
            producer.send(
                new ProducerRecord<>(application + "-out", one.partition(), one.key(), number));
            offsets.put(
                new TopicPartition(one.topic(), one.partition()),
                new OffsetAndMetadata(one.offset() + 1));
        }
        producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
        producer.commitTransaction();
    }
}

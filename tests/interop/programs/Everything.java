// java Everything.java BOOTSTRAP NAME: the Java client does once what a client can do.
//
// Topics and groups have names that begin with NAME. The program fails if a call fails that should
// not, or does not fail that should.
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.function.BooleanSupplier;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.*;

public class Everything {
    static final int PARTITIONS = 3;
    static final int RECORDS = 30;
    static final int WAIT_MS_MAX = 30_000;
    static final Duration POLL = Duration.ofMillis(100);

    static String bootstrap, name, unknown;
    static Admin admin;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        name = arguments[1];
        unknown = name + "-unknown";
        admin = Admin.create(Map.<String, Object>of("bootstrap.servers", bootstrap));
        topics();
        records();
        group(name + "-classic", Map.of());
        group(name + "-consumer", Map.of("group.protocol", "consumer"));
        refused(admin.deleteConsumerGroups(List.of(name + "-none")).all());
        refused(admin.describeConsumerGroups(List.of(name + "-none")).all());
        admin.deleteTopics(List.of(name)).all().get();
        refused(admin.deleteTopics(List.of(unknown)).all());
        admin.close();
    }

    interface Call {
        Object run() throws Exception;
    }

    static void refused(Future<?> future) throws Exception {
        refused(future::get);
    }

    static void refused(Call call) throws Exception {
        Object answer;
        try {
            answer = call.run();
        } catch (ExecutionException | KafkaException error) {
            return;
        }
        throw new AssertionError("not refused: " + answer);
    }

    // -- topics

    static void topics() throws Exception {
        var made = new NewTopic(name, PARTITIONS - 1, (short) 1).configs(Map.of("retention.ms", "100000000"));
        admin.createTopics(List.of(made)).all().get();
        for (var wrong : List.of(made, new NewTopic("a b", 1, (short) 1), new NewTopic(name + "-9", 1, (short) 9)))
            refused(admin.createTopics(List.of(wrong)).all());
        var checked = new NewTopic(name + "-checked", Optional.empty(), Optional.empty());
        admin.createTopics(List.of(checked), new CreateTopicsOptions().validateOnly(true)).all().get();
        admin.createPartitions(Map.of(name, NewPartitions.increaseTo(PARTITIONS))).all().get();
        refused(admin.createPartitions(Map.of(name, NewPartitions.increaseTo(1))).all());
        refused(admin.createPartitions(Map.of(unknown, NewPartitions.increaseTo(2))).all());
        admin.listTopics().names().get();
        var described = admin.describeTopics(
            List.of(name), new DescribeTopicsOptions().includeAuthorizedOperations(true));
        var id = described.allTopicNames().get().get(name).topicId();
        admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds().get();
        refused(admin.describeTopics(List.of(unknown)).allTopicNames());
        admin.describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(true)).nodes().get();
        admin.describeLogDirs(List.of(1)).allDescriptions().get();
        admin.describeFeatures().featureMetadata().get();
        admin.listConfigResources().all().get();
        refused(admin.electLeaders(ElectionType.PREFERRED, Set.of(new TopicPartition(unknown, 0))).all());
        var topic = new ConfigResource(ConfigResource.Type.TOPIC, name);
        var nowhere = new ConfigResource(ConfigResource.Type.TOPIC, unknown);
        alter(topic, "2000000", AlterConfigOp.OpType.SET).get();
        refused(alter(topic, "odd", AlterConfigOp.OpType.SET));
        refused(alter(nowhere, "2000000", AlterConfigOp.OpType.SET));
        var broker = new ConfigResource(ConfigResource.Type.BROKER, "1");
        var all = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
        admin.describeConfigs(List.of(topic, broker), all).all().get();
        refused(admin.describeConfigs(List.of(nowhere)).all());
        alter(topic, "", AlterConfigOp.OpType.DELETE).get();
    }

    static Future<Void> alter(ConfigResource where, String value, AlterConfigOp.OpType kind) {
        var change = new AlterConfigOp(new ConfigEntry("segment.bytes", value), kind);
        return admin.incrementalAlterConfigs(Map.of(where, List.of(change))).all();
    }

    // -- records

    static void records() throws Exception {
        for (var settings : List.of(
                Map.of("acks", "all", "enable.idempotence", "true", "compression.type", "zstd"),
                Map.of("acks", "1", "enable.idempotence", "false", "compression.type", "gzip"),
                Map.of("acks", "0", "enable.idempotence", "false")))
            produce(name, RECORDS, 1, settings);
        refused(() -> { produce(name, 1, 2_000_000, Map.of()); return null; });
        produce(name + "-used", 1, 1, Map.of());
        var partition = new TopicPartition(name, 0);
        for (var spec : List.of(
                OffsetSpec.earliest(), OffsetSpec.latest(), OffsetSpec.maxTimestamp(),
                OffsetSpec.forTimestamp(1_000), OffsetSpec.forTimestamp(1L << 50)))
            admin.listOffsets(Map.of(partition, spec)).all().get();
        admin.describeProducers(List.of(partition));
        admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(5))).all().get();
        var tooFar = Map.of(new TopicPartition(name, 1), RecordsToDelete.beforeOffset(999_999));
        refused(admin.deleteRecords(tooFar).all());
    }

    static void produce(String topic, int count, int size, Map<String, String> settings) throws Exception {
        var all = new HashMap<String, Object>(settings);
        all.put("bootstrap.servers", bootstrap);
        all.put("max.request.size", "5000000");
        var bytes = new ByteArraySerializer();
        try (var producer = new KafkaProducer<byte[], byte[]>(all, bytes, bytes)) {
            for (int number = 0; number < count; number++)
                producer.send(new ProducerRecord<>(topic, new byte[] {(byte) number}, new byte[size])).get();
        }
    }

    // -- groups: two members share the partitions and commit; the second leaves before the first

    static void group(String group, Map<String, String> settings) throws Exception {
        var first = consumer(group, settings);
        pollUntil(() -> first.assignment().size() == PARTITIONS, first);
        var second = consumer(group, settings);
        pollUntil(() -> !second.assignment().isEmpty(), first, second);
        pollUntil(() -> first.assignment().size() + second.assignment().size() == PARTITIONS, first, second);
        var offsets = new HashMap<TopicPartition, OffsetAndMetadata>();
        for (var one : first.assignment())
            offsets.put(one, new OffsetAndMetadata(7));
        first.commitSync(offsets);
        first.committed(offsets.keySet());
        var partition = new TopicPartition(name, 0);
        first.offsetsForTimes(Map.of(partition, 1_000L));
        first.beginningOffsets(List.of(partition));
        first.endOffsets(List.of(partition));
        var described = new DescribeConsumerGroupsOptions().includeAuthorizedOperations(true);
        admin.describeConsumerGroups(List.of(group), described).all().get();
        refused(admin.deleteConsumerGroups(List.of(group)).all());
        second.close();
        pollUntil(() -> first.assignment().size() == PARTITIONS, first);
        first.close();
        admin.listGroups().all().get();
        admin.describeConsumerGroups(List.of(group)).all().get();
        admin.listConsumerGroupOffsets(group).all().get();
        admin.alterConsumerGroupOffsets(group, Map.of(partition, new OffsetAndMetadata(9))).all().get();
        admin.deleteConsumerGroupOffsets(group, Set.of(partition)).all().get();
        admin.deleteConsumerGroups(List.of(group)).all().get();
    }

    static Consumer<byte[], byte[]> consumer(String group, Map<String, String> settings) {
        var all = new HashMap<String, Object>(settings);
        all.put("bootstrap.servers", bootstrap);
        all.put("group.id", group);
        all.put("auto.offset.reset", "earliest");
        all.put("enable.auto.commit", "false");
        if (settings.isEmpty())
            all.put("heartbeat.interval.ms", "200");
        var bytes = new ByteArrayDeserializer();
        var consumer = new KafkaConsumer<byte[], byte[]>(all, bytes, bytes);
        consumer.subscribe(List.of(name));
        return consumer;
    }

    @SafeVarargs
    static void pollUntil(BooleanSupplier condition, Consumer<byte[], byte[]>... members) {
        long deadline = System.currentTimeMillis() + WAIT_MS_MAX;
        while (!condition.getAsBoolean()) {
            if (System.currentTimeMillis() > deadline)
                throw new AssertionError("not in time: " + Arrays.toString(members));
            for (var member : members)
                member.poll(POLL);
        }
    }
}

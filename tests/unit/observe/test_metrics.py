"""The pages of metrics against what their broker was given to do."""

import pytest
import trio
from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily

from minibroker.broker.descriptors import DescriptorBudget
from minibroker.broker.histogram import Histogram
from minibroker.broker.metadata.model import ClusterImage, PartitionImage, TopicImage
from minibroker.broker.observe.metrics.exposition import (
    SAMPLES_AT_ONCE,
    add_distribution,
    histogram,
    write,
)
from minibroker.protocol.constants import NO_NODE, ErrorCode
from minibroker.protocol.types import TopicPartition
from tests.unit.node import T0, Node, batch_of, state_of
from tests.unit.observe.shown import (
    FakeControllerNode,
    Samples,
    metrics_of,
    parsed,
    sources_of,
    values,
)
from tests.unit.server.fetching import answer, append, want

MANAGER = "kafka_server_replicamanager"
PARTITION = "kafka_topic_partition"
OTHER = TopicPartition("other", 0)


class _Registry:
    def __init__(self, family: GaugeMetricFamily) -> None:
        self.family = family

    def collect(self) -> list[GaugeMetricFamily]:
        return [self.family]


async def test_a_long_family_is_written_in_pieces() -> None:
    """Its text is the same as in one piece, and others run in between."""
    family = GaugeMetricFamily("m", "Meaning", labels=("topic",))
    for number in range(3 * SAMPLES_AT_ONCE + 1):
        family.add_metric([f't"\\{number}'], number)
    whole = generate_latest(_Registry(family))  # type: ignore[arg-type]
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        text = await write([family])
        nursery.cancel_scope.cancel()
    assert text == whole
    assert turns >= 3


async def test_a_distribution_counts_up_to_each_bound() -> None:
    """Prometheus' buckets hold all that is not above them."""
    durations = Histogram((0.001, 0.5))
    for duration_s in (0.0005, 0.2, 0.2, 3):
        durations.record(duration_s)
    family = histogram("d_seconds", "Meaning", "mode")
    add_distribution(family, ["always"], durations.statistics())
    _, samples = parsed((await write([family])).decode())
    buckets = samples["d_seconds_bucket"]
    assert buckets == {("0.001", "always"): 1, ("0.5", "always"): 3, ("+Inf", "always"): 4}
    assert samples["d_seconds_count"] == {("always",): 4}
    assert samples["d_seconds_sum"][("always",)] == pytest.approx(3.4005)


def replicated(**settings: str) -> Node:
    """Two partitions: `t` is led here and copied by broker 2, `other` is led there."""
    node = Node(**settings)
    node.live(1, 2)
    node.lead(state_of(isr=(1, 2), replicas=(2, 1), epochs=(3, 1)))
    node.lead(state_of(OTHER, leader=2, isr=(2,), replicas=(2, 1), topic_id=b"o" * 16))
    return node


def health(samples: Samples) -> list[float]:
    """Under-replicated, under and at the minimum of the in-sync set, offline replicas."""
    names = ("underreplicatedpartitions", "underminisrpartitioncount")
    more = ("atminisrpartitioncount", "offlinereplicacount")
    return list(values(samples, *(f"{MANAGER}_{name}" for name in (*names, *more))))


@pytest.mark.parametrize("path", ["/metrics", "/public_metrics"])
async def test_in_sync_sets_are_judged(path: str) -> None:
    """A leader counts as under-replicated, under its minimum and at it as acks=all sees it."""
    node = replicated(min_insync_replicas="2")
    assert health(await metrics_of(sources_of(node), path)) == [0, 0, 0, 0]
    node.configure(min_insync_replicas="1")
    node.apply(state_of(isr=(1,), replicas=(2, 1), epochs=(3, 2)))
    assert health(await metrics_of(sources_of(node), path)) == [1, 0, 1, 0]
    node.configure(min_insync_replicas="2")
    node.partition(OTHER).go_offline(ErrorCode.KAFKA_STORAGE_ERROR, "gone")
    samples = await metrics_of(sources_of(node), path)
    assert health(samples) == [1, 1, 0, 1]
    assert values(samples, f"{MANAGER}_partitioncount", f"{MANAGER}_leadercount") == [2, 1]


@pytest.mark.parametrize("path", ["/metrics", "/public_metrics"])
async def test_quotas_tell_their_limit_and_their_rate(path: str) -> None:
    """Of each side: a limit (infinity without one), the bytes so far and the rate now."""
    node = replicated()
    quotas = node.replicas.quotas
    quotas.leader.limit = 1000
    quotas.leader.record(500, trio.current_time())
    quotas.moves.record(7, trio.current_time())
    samples = await metrics_of(sources_of(node), path)
    name = "minibroker_replication_quota"
    assert samples[f"{name}_bytes_total"] == {("leader",): 500, ("follower",): 0, ("moves",): 7}
    rates = samples[f"{name}_bytes_per_second"]
    assert rates == {
        ("leader",): pytest.approx(500),
        ("follower",): 0,
        ("moves",): pytest.approx(7),
    }
    limits = samples[f"{name}_limit_bytes_per_second"]
    assert limits == {
        ("leader",): 1000,
        ("follower",): float("inf"),
        ("moves",): float("inf"),
    }


async def test_figures_are_those_of_what_was_done() -> None:
    """Offsets, sizes and traffic of each partition are what was produced, fetched and copied."""
    node = replicated(flush="always")
    node.append(3)
    node.append(2)
    size = node.partition().log.size
    answer(node, want(0), replica_id=2)
    node.followed(2, 5)
    node.partition().log.finish_flush(node.partition().log.start_flush())
    node.partition().advance(0.0)
    assert answer(node, want(0)).records
    samples = await metrics_of(sources_of(node))
    place = ("0", "t")
    for name, expected in {
        f"{PARTITION}_current_offset": 5,
        f"{PARTITION}_oldest_offset": 0,
        f"{PARTITION}_in_sync_replica": 2,
        f"{PARTITION}_replicas": 2,
        f"{PARTITION}_leader": 1,
        f"{PARTITION}_leader_is_preferred": 0,
        f"{PARTITION}_under_replicated_partition": 0,
    }.items():
        assert samples[name] == {place: expected}, name
    followed = ("0", "other")
    for name, expected in {
        "minibroker_replica_leo": 5,
        "minibroker_replica_hw": 5,
        "minibroker_replica_lso": 5,
        "minibroker_replica_leader_epoch": 3,
        "minibroker_replica_durable_end": 5,
        "kafka_log_log_size": size,
        "kafka_log_log_numlogsegments": 1,
    }.items():
        assert samples[name][place] == expected, name
        assert followed in samples[name]
    assert samples["minibroker_replica_role"] == {
        ("0", "leader", "t"): 1,
        ("0", "follower", "other"): 1,
    }
    traffic = "kafka_server_brokertopicmetrics"
    assert samples[f"{traffic}_messagesin_total"][("t",)] == 5
    for flow in ("bytesin", "bytesout", "replicationbytesout"):
        assert samples[f"{traffic}_{flow}_total"] == {("t",): size, ("other",): 0}
    policy = samples["minibroker_durability_policy_info"]
    assert policy == {("fsynced", "always", "t"): 1, ("fsynced", "always", "other"): 1}
    public = await metrics_of(sources_of(node), "/public_metrics")
    assert values(public, f"{traffic}_messagesin_total", f"{traffic}_bytesin_total") == [5, size]


async def test_descriptors_are_told_by_what_holds_them() -> None:
    """Logs, open sealed segments and connections, beside the reserve and the limit."""
    node = Node()
    sources = sources_of(node)
    budget = sources.acceptor.descriptors = DescriptorBudget(1_024)
    budget.logs, budget.sealed, budget.connections = 5, 7, 9
    told = await metrics_of(sources)
    parts = {"logs": 5, "sealed": 7, "connections": 9, "reserve": 64}
    assert told["minibroker_descriptors"] == {(part,): held for part, held in parts.items()}
    assert values(told, "minibroker_descriptors_max") == [1_024]


async def test_a_follower_tells_how_far_it_is_behind() -> None:
    """Its lag is what the leader has committed and it lacks; the broker tells the largest."""
    node = replicated()
    role = node.partition(OTHER).role
    role.leader_high_watermark = 40  # type: ignore[union-attr]
    samples = await metrics_of(sources_of(node))
    assert samples["minibroker_replica_lag"][("0", "other")] == 40
    assert values(samples, "kafka_server_replicafetchermanager_maxlag") == [40]
    role.failure = "its leader is strange"  # type: ignore[union-attr]
    samples = await metrics_of(sources_of(node))
    assert values(samples, "kafka_server_replicafetchermanager_failedpartitionscount") == [1]


async def test_a_leader_tells_what_it_knows_of_its_followers() -> None:
    """The remote LEO of each, and the seconds since its last fetch and since it lacks something;
    what is not known in this term has no sample."""
    node = Node()
    node.live(1, 2, 3)
    now = trio.current_time()
    node.apply(state_of(isr=(1, 2), replicas=(1, 2, 3)), now=now - 30)
    append(node, batch_of(5))
    node.followed(2, 5, now=now - 20)
    append(node, batch_of(2))
    node.followed(2, 6, now=now - 10)
    samples = await metrics_of(sources_of(node))
    own, follower = "minibroker_follower", ("2", "0", "t")
    assert samples[f"{own}_leo"] == {follower: 6}
    ((place, fetched_s),) = samples[f"{own}_last_fetch_seconds"].items()
    ((_, lacking_s),) = samples[f"{own}_caught_up_seconds"].items()
    assert place == follower
    assert fetched_s >= 10
    assert lacking_s == pytest.approx(fetched_s + 10)
    node.apply(state_of(leader=2, isr=(1, 2), replicas=(1, 2, 3), epochs=(1, 1)))
    assert (
        not {f"{own}_leo", f"{own}_caught_up_seconds"} & (await metrics_of(sources_of(node))).keys()
    )


async def test_the_controller_alone_tells_of_the_cluster() -> None:
    """It tells how many brokers and partitions there are, and of those without a leader; another
    broker says only that it is not the controller."""
    node = Node()
    partitions = (
        PartitionImage(0, NO_NODE, 0, (2,), (2,), 0),
        PartitionImage(1, 2, 0, (2,), (2,), 0),
        PartitionImage(2, 1, 0, (1,), (1,), 0),
    )
    topic = TopicImage(b"i" * 16, "t", {}, partitions)
    node.replicas.image = ClusterImage("c", 1, 0, {}, {"t": topic})
    controller_node = FakeControllerNode()
    samples = await metrics_of(sources_of(node, controller_node))
    controller = "kafka_controller_kafkacontroller"
    names = ("activecontrollercount", "offlinepartitionscount", "fencedbrokercount")
    assert values(samples, *(f"{controller}_{name}" for name in names)) == [1, 4, 1]
    assert values(samples, "kafka_brokers") == [3]
    assert samples["kafka_topic_partitions"] == {("t",): 3}
    assert samples[f"{PARTITION}_leader"] == {("0", "t"): -1, ("2", "t"): 1}
    controller_node.controller = None
    samples = await metrics_of(sources_of(node, controller_node))
    assert values(samples, f"{controller}_activecontrollercount") == [0]
    assert samples[f"{PARTITION}_leader"] == {("2", "t"): 1}
    assert not {"kafka_brokers", "kafka_topic_partitions"} & samples.keys()


async def test_the_public_page_names_no_topic() -> None:
    """Nothing on it has a label whose values grow with topics, partitions, groups or clients."""
    node = replicated()
    append(node, batch_of())
    for name, places in (await metrics_of(sources_of(node), "/public_metrics")).items():
        assert not any(T0.topic in place or OTHER.topic in place for place in places), name

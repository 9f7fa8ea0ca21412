"""Findings about topics.

A partition without a leader or with replicas out of sync is a problem. A risky setting of a topic
is a note, because somebody may have chosen it.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from minibroker.broker.findings import Finding, Level, counted, listed
from minibroker.broker.findings.partitions import awaited, health_of, needed_in_sync

if TYPE_CHECKING:
    from minibroker.broker.config import Config
    from minibroker.protocol.messages.brokers import FarStampedTopic
    from minibroker.protocol.messages.metadata import TopicMetadata

DAY_MS: Final = 86_400_000
Configs = Mapping[str, Mapping[str, str]]  # by topic, by property: the effective settings


def of_topics(
    topics: "Iterable[TopicMetadata]", configs: Configs, live: Iterable[int]
) -> Iterator[Finding]:
    """Check everything about these topics; `live` are the live brokers of the cluster."""
    described, alive = list(topics), set(live)
    yield from of_missing_brokers(described, alive)
    yield from of_partitions(described, configs)
    yield from of_settings(described, configs, len(alive))


def of_refused_topics(refused: Mapping[str, str]) -> Iterator[Finding]:
    """Report whether topics can be created now. `refused` maps a kind of topic to the reason why
    not."""
    for what, reason in refused.items():
        yield Finding(
            Level.PROBLEM,
            f"{what} cannot be created: {reason}",
            "start the brokers that are down, or lower the replication factor or"
            " min.insync.replicas",
        )
    if not refused:
        yield Finding(Level.OK, "new topics can be created")


def of_missing_brokers(topics: "Iterable[TopicMetadata]", live: set[int]) -> Iterator[Finding]:
    """Report brokers that hold replicas and are not live."""
    missing: dict[int, int] = {}
    for topic in topics:
        for partition in topic.partitions:
            for node_id in partition.replicas:
                if node_id not in live:
                    missing[node_id] = missing.get(node_id, 0) + 1
    for node_id, count in sorted(missing.items()):
        yield Finding(
            Level.PROBLEM,
            f"broker {node_id} is not alive, and holds {counted(count, 'replica')}",
            "start it, or see why it hangs; its log says more",
        )


def of_partitions(topics: "Iterable[TopicMetadata]", configs: Configs) -> Iterator[Finding]:
    """Report partitions without a leader, or with replicas out of sync."""
    leaderless, refusing, lagging = [], [], []
    count = 0
    for topic in topics:
        for partition in topic.partitions:
            count += 1
            name = f"{topic.name}-{partition.partition}"
            health = health_of(partition, configs[topic.name])
            if health.is_unavailable:
                leaderless.append(f"{name} ({awaited(partition)})")
            elif health.is_under_min_isr:
                refusing.append(name)
            elif health.is_under_replicated:
                lagging.append(name)
    if leaderless:
        yield Finding(
            Level.PROBLEM,
            f"{counted(len(leaderless), 'partition')} without a leader: {listed(leaderless)}",
            "start the brokers that are missing; if they never come back, `minibroker leader elect"
            " --unclean` says what giving them up costs",
        )
    if refusing:
        yield Finding(
            Level.PROBLEM,
            f"{counted(len(refusing), 'partition')} with fewer replicas in sync than"
            f" min.insync.replicas, so acks=all is refused: {listed(refusing)}",
            "start the brokers that are missing; `minibroker replica status` shows who lags",
        )
    if lagging:
        yield Finding(
            Level.PROBLEM,
            f"{counted(len(lagging), 'partition')} under-replicated: {listed(lagging)}",
            "wait if a broker has just started; `minibroker replica status` shows who lags",
        )
    if not (leaderless or refusing or lagging):
        yield Finding(Level.OK, f"{counted(count, 'partition')}: all replicas are in sync")


def of_timestamps(
    stamped: "Iterable[FarStampedTopic]", configs: Configs, now_ms: int
) -> Iterator[Finding]:
    """Report the topics whose records are stamped far from the clock of the broker that took them.
    `now_ms` is a wall clock, for how far that is."""
    latest: dict[str, FarStampedTopic] = {}
    for each in sorted(stamped, key=lambda one: -one.age_ms):
        if each.topic in configs:  # it may be deleted since
            latest[each.topic] = each
    for topic, each in sorted(latest.items()):
        ahead_ms = each.timestamp - (now_ms - each.age_ms)
        days = f"{abs(ahead_ms) / DAY_MS:,.0f} days"
        retention_ms = int(configs[topic]["retention.ms"])
        if ahead_ms > 0:
            meaning = f"{days} ahead of the broker's clock: retention keeps them until then"
            name = "after"
        elif 0 <= retention_ms < -ahead_ms:
            meaning = (
                f"{days} behind the broker's clock: retention deletes them at its next check,"
                f" since retention.ms is {retention_ms}"
            )
            name = "before"
        else:
            meaning, name = f"{days} behind the broker's clock", "before"
        yield Finding(
            Level.NOTE,
            f"topic {topic}: records of {each.count:,} requests are stamped far from now, the last"
            f" {each.timestamp} ms, {meaning}",
            "nothing, if that is old data; else see whether its producers stamp in milliseconds"
            f" since 1970: message.timestamp.{name}.max.ms of the topic refuses other records",
        )


def of_defaults(config: "Config") -> Iterator[Finding]:
    """Check the settings that new topics get from a broker with this configuration."""
    from minibroker.protocol.constants import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
    from minibroker.protocol.messages.metadata import PartitionMetadata, TopicMetadata

    counts = {
        "new ones": config.default_replication_factor,
        OFFSETS_TOPIC: config.offsets_topic_replication_factor,
        TRANSACTIONS_TOPIC: config.transaction_state_log_replication_factor,
    }
    topics = [
        TopicMetadata(name, partitions=(PartitionMetadata(0, replicas=(*range(count),)),))
        for name, count in counts.items()
    ]
    settings = {entry.name: entry.value for entry in config.describe_topic({})}
    yield from of_settings(topics, dict.fromkeys(counts, settings), 1)


def of_settings(
    topics: "Iterable[TopicMetadata]", configs: Configs, brokers: int
) -> Iterator[Finding]:
    """Report settings of topics with which acknowledged records can be lost or writes refused."""
    single, unsafe, rigid, unclean, unflushed = [], [], [], [], []
    for topic in topics:
        settings = configs[topic.name]
        replicas = min((len(each.replicas) for each in topic.partitions), default=0)
        needed = needed_in_sync(replicas, settings)
        if replicas == 1 and brokers > 1:
            single.append(topic.name)
        if replicas >= 3 and needed == 1:
            unsafe.append(topic.name)
        if replicas >= 2 and needed == replicas:
            rigid.append(topic.name)
        if settings["unclean.leader.election.enable"] == "true":
            unclean.append(topic.name)
        if replicas == 1 and settings["flush"] == "never":
            unflushed.append(topic.name)
    for names, what, advice in (
        (
            single,
            "have one replica: what is in them is gone with its broker",
            "make them anew with --replication-factor 3",
        ),
        (
            unsafe,
            "have min.insync.replicas=1: acks=all may mean a single broker, and its loss theirs",
            "minibroker topic alter TOPIC --config min.insync.replicas=2",
        ),
        (
            rigid,
            "need all replicas in sync: acks=all is refused while any broker is away",
            "give them a replica more than min.insync.replicas",
        ),
        (
            unclean,
            "have unclean.leader.election.enable=true: acknowledged records may be given up",
            "set it only as long as it takes to have a leader again",
        ),
        (
            unflushed,
            "have one replica and flush=never: a power cut may take what was acknowledged",
            "minibroker topic alter TOPIC --config flush=always",
        ),
    ):
        if names:
            yield Finding(Level.NOTE, f"topics that {what}: {listed(names)}", advice)

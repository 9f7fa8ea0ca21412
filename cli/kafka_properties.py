"""Properties of Kafka's brokers that have no meaning here.

A `server.properties` that was written for Kafka starts a broker: its properties of this list are
one warning. Names that are in neither broker's table stay errors, because they may be misspelled.
So do properties by which an operator protects something (`ssl.`, `sasl.`, `authorizer.class.name`,
`delete.topic.enable`): left out, they would leave it open.
"""

from collections.abc import Mapping
from typing import Final

FAMILIES: Final = (
    "confluent.",
    "controller.quorum.",
    "controller.quota.window.",
    "group.share.",
    "log.local.retention.",
    "metadata.log.",
    "metadata.max.",
    "remote.",
    "share.",
    "zookeeper.",
)
NAMES: Final = frozenset(
    {
        "alter.log.dirs.replication.quota.window.num",
        "alter.log.dirs.replication.quota.window.size.seconds",
        "background.threads",
        "broker.id.generation.enable",
        "connection.failed.authentication.delay.ms",
        "control.plane.listener.name",
        "controller.socket.timeout.ms",
        "delete.records.purgatory.purge.interval.requests",
        "early.start.listeners",
        "eligible.leader.replicas.enable",
        "fetch.purgatory.purge.interval.requests",
        "group.consumer.max.heartbeat.interval.ms",
        "group.consumer.max.session.timeout.ms",
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.min.session.timeout.ms",
        "group.coordinator.append.linger.ms",
        "group.coordinator.new.enable",
        "group.coordinator.rebalance.protocols",
        "group.coordinator.threads",
        "initial.broker.registration.timeout.ms",
        "inter.broker.protocol.version",
        "kafka.metrics.polling.interval.secs",
        "kafka.metrics.reporters",
        "log.dir.failure.timeout.ms",
        "log.flush.scheduler.interval.ms",
        "log.initial.task.delay.ms",
        "log.message.format.version",
        "max.connection.creation.rate",
        "max.request.partition.size.limit",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "num.io.threads",
        "num.network.threads",
        "num.recovery.threads.per.data.dir",
        "num.replica.alter.log.dirs.threads",
        "offsets.load.buffer.size",
        "offsets.topic.compression.codec",
        "process.roles",
        "producer.purgatory.purge.interval.requests",
        "queued.max.requests",
        "quota.window.num",
        "quota.window.size.seconds",
        "replica.selector.class",
        "replica.socket.receive.buffer.bytes",
        "replication.quota.window.num",
        "replication.quota.window.size.seconds",
        "reserved.broker.max.id",
        "server.max.startup.time.ms",
        "socket.listen.backlog.size",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
        "telemetry.max.bytes",
        "transaction.partition.verification.enable",
        "transaction.state.log.load.buffer.size",
        "transaction.state.log.min.isr",
        "unclean.leader.election.interval.ms",
    }
)


def foreign_properties(given: Mapping[str, str]) -> list[str]:
    """Return the names that only Kafka's brokers know, sorted."""
    from minibroker.broker.properties import PROPERTIES

    ours = {name for row in PROPERTIES.values() for name in (row.name, *dict(row.aliases))}
    return sorted(
        name for name in given if name not in ours and (name in NAMES or name.startswith(FAMILIES))
    )

"""One partition, its brokers, and what becomes of it: for the tests of elections."""

from minibroker.broker.config import Config
from minibroker.broker.controller.elections import LogTail, review
from minibroker.broker.controller.plans import Change
from minibroker.broker.controller.state import (
    Admission,
    BrokerRegistration,
    PartitionRecord,
    State,
    TopicRecord,
)
from minibroker.broker.turns import without_pause
from minibroker.protocol.types import Endpoint, TopicPartition

CONFIG = Config()
NAME = TopicPartition("t", 0)
UNCLEAN = {"unclean.leader.election.enable": "true"}


def broker(node, epoch=10, run=1, process="p1", **said):
    return BrokerRegistration(node, epoch, Endpoint("h", node), f"d{node}", run, process, **said)


def returned(node, **said):
    """A broker that was started again, with what it says of its last run."""
    return broker(node, epoch=20, run=2, process="p2", **said)


def state_of(record, live=(1, 2, 3), configs=None):
    """A cluster of one partition, whose brokers have all been admitted once."""
    nodes = set(record.replicas) | set(live)
    return State(
        topics={"t": TopicRecord(b"i" * 16, "t", configs or {}, (record,))},
        brokers={node: broker(node) for node in live},
        admissions={node: Admission(node, 10, f"d{node}", 1, "p1") for node in nodes},
    )


def partition(leader=1, isr=(1, 2, 3), replicas=(1, 2, 3), unsafe=()):
    return PartitionRecord(0, leader, 5, 9, isr, replicas, unsafe)


def reviewed(state, *registered, fenced=()):
    """The partition after a review, and the plan."""
    nodes = {one.node_id: one for one in registered}
    plan = without_pause(review(state, nodes, CONFIG, frozenset(fenced)))
    assert plan.change == difference(state, plan.state)
    return plan.state.topics["t"].partitions[0], plan


def heard(tails):
    """How far the log of each broker goes, from (last epoch, log end)."""
    return {node: {NAME: LogTail(*tail)} for node, tail in tails.items()}


def outcome(record):
    return record.leader, record.isr, record.leader_epoch - 5, record.partition_epoch - 9


def difference(old, new):
    """What brokers that were told of `old` do not know: by comparing all, which a plan need not."""
    told, partitions = [], []
    for name, topic in new.topics.items():
        before = old.topics.get(name)
        is_new = before is None or before.id != topic.id
        if is_new or before.configs != topic.configs:
            told.append(name)
        known = () if is_new else before.partitions
        partitions += (
            TopicPartition(name, record.number)
            for record in topic.partitions
            if record.number >= len(known) or known[record.number] != record
        )
    deleted = [(name, topic.id) for name, topic in old.topics.items() if name not in new.topics]
    has_other_brokers = (old.brokers, old.admissions, old.fenced) != (
        new.brokers,
        new.admissions,
        new.fenced,
    )
    return Change(tuple(told), tuple(deleted), tuple(partitions), has_other_brokers)

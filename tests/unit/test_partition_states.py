"""Which replicas the testing kit counts as in sync."""

from types import SimpleNamespace
from typing import cast

from minibroker.client.blocking import Admin
from minibroker.protocol.messages.replicas import ReplicaDescription
from minibroker.testing.kit.state import PartitionState, partition_states


class _Admin:
    """Answers as a cluster of two brokers would, of which the first leads."""

    def __init__(self, *, partition_epoch: int, role: str = "follower") -> None:
        known = {"topic": "t", "partition": 0, "topic_id": bytes(16), "leader_epoch": 3}
        leader = ReplicaDescription(
            **known, role="leader", partition_epoch=7, isr=(1, 2), high_watermark=5, log_end=6
        )
        follower = ReplicaDescription(**known, role=role, partition_epoch=partition_epoch)
        self._answers = {1: leader, 2: follower}

    def describe_replicas(self, *_topics: str) -> object:
        answers = {
            node_id: SimpleNamespace(replicas=(replica,))
            for node_id, replica in self._answers.items()
        }
        return SimpleNamespace(answers=answers, silent={})

    def describe_topics(self, *_topics: str) -> object:
        partition = SimpleNamespace(partition=0, replicas=(1, 2))
        return [SimpleNamespace(name="t", partitions=[partition])]


def _state(admin: _Admin) -> PartitionState:
    [found] = partition_states(cast("Admin", admin), ["t"], [1, 2])
    return found


def test_a_replica_that_knows_what_its_leader_knows_is_in_sync() -> None:
    """And the leader's ends are told."""
    assert _state(_Admin(partition_epoch=7)) == ("t", 0, (1, 2), 1, (1, 2), 5, 6)


def test_a_leader_may_not_know_yet_that_a_replica_is_no_longer_in_sync() -> None:
    """The replica has restarted without the end of its log, and was told so before its leader."""
    assert _state(_Admin(partition_epoch=8)).isr == (1,)
    assert _state(_Admin(partition_epoch=6)).isr == (1,)


def test_a_replica_without_a_role_is_not_in_sync() -> None:
    """It has restarted, and the controller has told it nothing yet."""
    assert _state(_Admin(partition_epoch=-1, role="offline")).isr == (1,)

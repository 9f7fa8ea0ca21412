"""Roles as the controller orders them (A18; rows RM)."""

import errno

import pytest

from minibroker.broker.log.validate import Refused
from minibroker.broker.replication.roles import Leader
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.types import TopicPartition
from tests.unit.node import ROOT, T0, Node, batch_of, state_of

OTHER = TopicPartition("t", 1)


async def test_a_leader_begins_its_term_at_the_log_end() -> None:
    """A18: a new leader epoch is recorded with the log end as its start, though nothing follows."""
    node = Node()
    node.lead(state_of(epochs=(3, 0)))
    node.partition().append_as_leader(batch_of(2), 1, 1_000)
    node.lead(state_of(epochs=(4, 1)))
    role = node.partition().role
    assert isinstance(role, Leader)
    assert (role.leader_epoch, role.epoch_start) == (4, 2)
    assert node.partition().log.epochs.entries == ((3, 0), (4, 2))


def test_an_old_controller_is_refused_whole() -> None:
    """RM-01: an order of an older controller epoch changes nothing; both kinds of order."""
    node = Node()
    node.apply(state_of(), controller_epoch=5)
    with pytest.raises(Refused) as refused:
        node.apply(state_of(epochs=(1, 1)), controller_epoch=4)
    assert refused.value.code == ErrorCode.STALE_CONTROLLER_EPOCH
    with pytest.raises(Refused):
        node.stop(state_of(), delete=True, leader_epoch=9, controller_epoch=4)
    assert node.partition().version == (0, 0)


def test_orders_are_ordered_for_each_partition() -> None:
    """RM-03: lower epochs are fenced, equal ones answered with the pair, others proceed."""
    node = Node()
    node.apply(state_of(epochs=(2, 3)), state_of(OTHER, epochs=(2, 3)))
    role = node.partition().role
    stale, same = node.apply(state_of(epochs=(2, 2)), state_of(OTHER, epochs=(2, 3)))
    assert stale == (T0, ErrorCode.FENCED_LEADER_EPOCH, 2, 3)
    assert same == (OTHER, ErrorCode.NONE, 2, 3)
    assert node.partition().role is role
    fenced, newer = node.apply(state_of(epochs=(1, 9)), state_of(OTHER, epochs=(3, 4)))
    assert fenced.error == ErrorCode.FENCED_LEADER_EPOCH
    assert newer == (OTHER, ErrorCode.NONE, 3, 4)


async def test_a_higher_partition_epoch_keeps_the_term() -> None:
    """RM-03: in the same leader epoch only in-sync set and assignment change."""
    node = Node()
    node.apply(state_of(epochs=(1, 0), isr=(1, 2), replicas=(1, 2)))
    node.partition().append_as_leader(batch_of(2), 1, 1_000)
    role = node.partition().role
    node.partition().note_fetch(2, 1)
    node.apply(state_of(epochs=(1, 1), isr=(1,), replicas=(1, 2)))
    assert node.partition().role is role
    assert isinstance(role, Leader)
    assert role.epoch_start == 0
    assert node.partition().high_watermark == 2


def test_who_is_not_meant_says_so() -> None:
    """RM-10: an order without this broker among the replicas is refused for that partition."""
    node = Node()
    foreign, own = node.apply(state_of(leader=2, isr=(2,), replicas=(2,)), state_of(OTHER))
    assert foreign.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert own.error == ErrorCode.NONE
    assert node.replicas.get(T0) is None


def test_another_topic_of_the_same_name_is_left_alone() -> None:
    """RM-11: a different topic id is INCONSISTENT_TOPIC_ID, and the old partition untouched."""
    node = Node()
    node.apply(state_of())
    (refused,) = node.apply(state_of(epochs=(9, 9), topic_id=b"j" * 16))
    assert refused.error == ErrorCode.INCONSISTENT_TOPIC_ID
    assert node.partition().version == (0, 0)
    node.stop(state_of(topic_id=b"j" * 16), delete=True, leader_epoch=9)
    assert node.partition().is_leader


def test_a_stop_has_an_epoch_too() -> None:
    """RM-12: a stop of an older leader epoch is fenced; of this or a newer one obeyed."""
    node = Node()
    state = state_of(epochs=(2, 0))
    node.apply(state)
    (fenced,) = node.stop(state, delete=True, leader_epoch=1)
    assert fenced.error == ErrorCode.FENCED_LEADER_EPOCH
    assert node.partition().is_leader
    node.stop(state, delete=True, leader_epoch=2)
    assert node.replicas.get(T0) is None
    assert node.stop(state, delete=True, leader_epoch=2)[0].error == ErrorCode.NONE


def test_a_stop_without_delete_keeps_the_log() -> None:
    """RM-13: the replica serves nothing more, but its log and partition stay."""
    node = Node()
    node.apply(state_of())
    node.partition().append_as_leader(batch_of(), 1, 1_000)
    node.stop(state_of(), delete=False, leader_epoch=0)
    assert not node.partition().is_leader
    assert node.partition().log.log_end == 1
    assert node.replicas.statistics() == (1, 1)
    node.apply(state_of())
    assert not node.partition().is_leader
    with pytest.raises(Refused):
        node.partition().append_as_leader(batch_of(), 1, 1_000)


def test_a_deletion_frees_the_name_at_once() -> None:
    """RM-13: the directory is renamed, the checkpoint forgets it, and a new topic begins empty."""
    node = Node()
    node.apply(state_of())
    node.partition().append_as_leader(batch_of(), 1, 1_000)
    node.stop(state_of(), delete=True, leader_epoch=-2)
    assert "t-0" not in node.files.list(ROOT)
    assert node.replicas.high_watermarks() == {}
    node.apply(state_of(topic_id=b"j" * 16))
    assert node.partition().log.log_end == 0


def test_a_deletion_reaches_a_log_without_a_role() -> None:
    """CTL-15: a stop that is repeated at the next start deletes the log of that topic id only."""
    node = Node()
    node.apply(state_of(), state_of(OTHER))
    node.manager.close({})
    again = Node(node.files)
    again.stop(state_of(topic_id=b"j" * 16), delete=True, leader_epoch=-2)
    again.stop(state_of(OTHER), delete=True, leader_epoch=-2)
    assert again.manager.get(T0) is not None
    assert again.manager.get(OTHER) is None


def test_settings_reach_the_logs_of_a_topic() -> None:
    """A topic's own settings hold for its logs, those that are made later too."""
    node = Node()
    node.apply(state_of())
    node.replicas.reconfigure("t", {"segment.bytes": "1000", "min.insync.replicas": "2"})
    node.apply(state_of(OTHER))
    node.manager.close({})
    again = Node(node.files)
    again.replicas.reconfigure("t", {"segment.bytes": "1000"})
    again.apply(state_of(epochs=(1, 1)))
    for log in (node.partition().log, node.partition(OTHER).log, again.partition().log):
        assert log.limits.segment_bytes == 1_000
    for name in (T0, OTHER):
        assert node.partition(name).settings.min_insync_replicas == 2
    node.replicas.reconfigure("t", {})
    assert node.partition().log.limits.segment_bytes == node.config.log_segment_bytes


async def test_a_changed_demand_is_looked_at_at_once() -> None:
    """A2: a lower min ISR lets the high watermark rise without another append."""
    node = Node(min_insync_replicas="2")
    node.apply(state_of(isr=(1,), replicas=(1, 2)))
    node.partition().append_as_leader(batch_of(3), 1, 1_000)
    assert node.partition().high_watermark == 0
    node.replicas.reconfigure("t", {"min.insync.replicas": "1"})
    assert node.partition().high_watermark == 3


def test_a_full_order_sets_unknown_logs_aside() -> None:
    """N4: what a full order does not name is renamed, and its bytes are kept."""
    node = Node()
    node.apply(state_of(), state_of(OTHER))
    node.manager.close({})
    again = Node(node.files)
    again.apply(state_of(epochs=(1, 1)), is_full=True)
    names = again.files.list(ROOT)
    assert "t-0" in names
    assert "t-1" not in names
    assert any(name.startswith("t-1.") and name.endswith("-stray") for name in names)


def test_a_full_disk_makes_no_partition_but_no_harm() -> None:
    """A log that cannot be made is told to the controller and to who asks for it, and made as soon
    as there is room; other partitions go on."""
    node = Node()
    node.apply(state_of())
    node.files.space_bytes = 0
    failed, fine = node.apply(state_of(OTHER), state_of(epochs=(0, 1)))
    assert failed.error == ErrorCode.KAFKA_STORAGE_ERROR
    assert fine.error == ErrorCode.NONE
    node.replicas.retry()
    with pytest.raises(Refused) as refused:
        node.services.partition(OTHER)
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert node.replicas.statistics() == (1, 1)
    node.files.space_bytes = None
    node.replicas.retry()
    assert node.services.partition(OTHER).is_leader
    assert node.replicas.statistics() == (2, 0)


def test_no_file_left_makes_no_partition_but_no_harm() -> None:
    """A process out of file descriptors is as well as full; another error of the disk is not."""
    node = Node()
    node.files.fail("open", number=errno.EMFILE)
    assert node.apply(state_of())[0].error == ErrorCode.KAFKA_STORAGE_ERROR
    node.files.fail("open", number=errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        node.replicas.retry()
    node.replicas.retry()
    assert node.partition().is_leader
    assert node.manager.statistics().strays == ()


def test_a_partition_that_was_never_made_can_be_deleted() -> None:
    """What is given up while there was no room for it is not made later."""
    node = Node()
    node.files.space_bytes = 0
    node.apply(state_of())
    assert node.stop(state_of(), delete=True, leader_epoch=0)[0].error == ErrorCode.NONE
    node.files.space_bytes = None
    node.replicas.retry()
    assert node.replicas.get(T0) is None
    assert node.manager.logs == {}


def test_the_high_watermark_survives_a_restart() -> None:
    """BRK-05: after a clean stop a partition begins with the checkpointed high watermark."""
    node = Node()
    node.apply(state_of(isr=(1, 2), replicas=(1, 2)))
    node.partition().append_as_leader(batch_of(5), 1, 1_000)
    node.partition().note_fetch(2, 3)
    node.manager.close(node.replicas.high_watermarks())
    again = Node(node.files)
    again.apply(state_of(epochs=(1, 1), isr=(1, 2), replicas=(1, 2)))
    assert again.partition().high_watermark == 3
    assert again.partition().log.log_end == 5

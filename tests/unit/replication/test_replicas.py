"""Roles as the controller orders them (A18; rows RM)."""

import errno
import logging
from dataclasses import replace

import pytest

from minibroker.broker.errors import Refused
from minibroker.broker.log.compaction import LastRun
from minibroker.broker.replication.follower import Follower
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.control import (
    LeaderAndIsrRequest,
    PartitionObeyed,
    StoppedPartition,
    StopReplicaRequest,
    TopicState,
    UpdateMetadataRequest,
)
from minibroker.protocol.messages.replicas import (
    CompactionDescription,
    DescribeReplicasRequest,
    FollowerDescription,
)
from minibroker.protocol.types import TopicPartition
from tests.unit.node import ROOT, T0, Node, state_of

OTHER = TopicPartition("t", 1)


async def test_a_leader_begins_its_term_at_the_log_end() -> None:
    """A18: a new leader epoch is recorded with the log end as its start, though nothing follows."""
    node = Node()
    node.lead(state_of(epochs=(3, 0)))
    node.append(2)
    node.lead(state_of(epochs=(4, 1)))
    role = node.leader()
    assert (role.leader_epoch, role.epoch_start) == (4, 2)
    assert node.partition().log.epochs.entries == ((3, 0), (4, 2))


def requests_of(controller_epoch: int, broker_epoch: int) -> list[tuple[str, object]]:
    """Each of the three kinds of order, with the method of `Replicas` that takes it."""
    sender = (1, controller_epoch, broker_epoch)
    stopped = StoppedPartition("t", b"i" * 16, 0, 9, delete=True)
    return [
        ("obey_roles", LeaderAndIsrRequest(*sender, (state_of(epochs=(1, 1)),))),
        ("stop", StopReplicaRequest(*sender, (stopped,))),
        ("update_metadata", UpdateMetadataRequest(*sender, "other")),
    ]


def test_an_old_controller_is_refused_whole() -> None:
    """RM-01: a request of an older controller epoch than the last one changes nothing; all three
    kinds, whichever kind told of the newer controller."""
    node = Node()
    node.apply(state_of())
    for place, (method, request) in enumerate(requests_of(4 + 0, 1)):
        node.update(controller_epoch=5 + place)
        response = getattr(node.replicas, method)(request, 0.0)
        assert response.error == ErrorCode.STALE_CONTROLLER_EPOCH
    assert node.partition().version == (0, 0)
    assert node.services.image.cluster_id == "cluster"


def test_an_order_for_a_former_life_is_refused_whole() -> None:
    """RM-02: a request with an older broker epoch changes nothing, and tells of no controller; so
    does any before this broker has registered. One for a registration that is under way counts."""
    node = Node()
    node.apply(state_of())
    node.broker_epoch = 7
    for method, request in requests_of(9, 6):
        assert getattr(node.replicas, method)(request, 0.0).error == ErrorCode.STALE_BROKER_EPOCH
    assert node.partition().version == (0, 0)
    node.broker_epoch = -1
    for method, request in requests_of(9, 6):
        assert getattr(node.replicas, method)(request, 0.0).error == ErrorCode.STALE_BROKER_EPOCH
    node.broker_epoch = 7
    assert not node.update(controller_epoch=0)
    for method, request in requests_of(0, 8):
        assert not getattr(node.replicas, method)(request, 0.0).error


def test_orders_are_ordered_for_each_partition() -> None:
    """RM-03: lower epochs are fenced, equal ones answered with the pair, others proceed."""
    node = Node()
    node.apply(state_of(epochs=(2, 3)), state_of(OTHER, epochs=(2, 3)))
    role = node.partition().role
    stale, same = node.apply(state_of(epochs=(2, 2)), state_of(OTHER, epochs=(2, 3)))
    assert stale == PartitionObeyed(*T0, ErrorCode.FENCED_LEADER_EPOCH, 2, 3)
    assert same == PartitionObeyed(*OTHER, ErrorCode.NONE, 2, 3)
    assert node.partition().role is role
    fenced, newer = node.apply(state_of(epochs=(1, 9)), state_of(OTHER, epochs=(3, 4)))
    assert fenced.error == ErrorCode.FENCED_LEADER_EPOCH
    assert newer == PartitionObeyed(*OTHER, ErrorCode.NONE, 3, 4)


async def test_a_higher_partition_epoch_keeps_the_term() -> None:
    """RM-03: in the same leader epoch only in-sync set and assignment change."""
    node = Node()
    node.apply(state_of(epochs=(1, 0), isr=(1, 2), replicas=(1, 2)))
    node.append(2)
    role = node.leader()
    node.followed(2, 1)
    node.apply(state_of(epochs=(1, 1), isr=(1,), replicas=(1, 2)), now=100.0)
    assert node.partition().role is role
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


def removed(
    node: Node,
    *epochs: int,
    topic_id: bytes = b"i" * 16,
    number: int = 0,
    controller_epoch: int = 0,
) -> int:
    """The error of a STOP_REPLICA for t-0, which left the assignment in the state of these
    epochs."""
    leader_epoch, partition_epoch = epochs
    state = state_of(topic_id=topic_id)
    (answer,) = node.stop(
        state,
        delete=True,
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
        number=number,
        controller_epoch=controller_epoch,
    )
    return answer.error


def test_a_removed_replica_is_deleted_and_does_not_come_back() -> None:
    """What a reassignment removed goes, files and all. An order from before that arrives late is
    known by its number and creates nothing; one from after begins with an empty log."""
    node = Node()
    node.apply(state_of(epochs=(2, 3)), number=1)
    node.append()
    assert removed(node, 2, 4, topic_id=b"j" * 16, number=2) == ErrorCode.NONE
    assert node.partition().is_leader
    assert removed(node, 2, 4, number=3) == ErrorCode.NONE
    assert node.replicas.get(T0) is None
    assert "t-0" not in node.files.list(ROOT)
    for number in (1, 2, 3):
        roles = (state_of(epochs=(2, 3)),)
        late = LeaderAndIsrRequest(1, 0, node.broker_epoch, roles, number=number)
        assert node.replicas.obey_roles(late, 0.0).error == ErrorCode.STALE_CONTROLLER_EPOCH
        assert node.replicas.get(T0) is None
    (again,) = node.apply(state_of(epochs=(2, 5)), number=4)
    assert again.error == ErrorCode.NONE
    assert node.partition().log.log_end == 0


def test_what_an_earlier_controller_knew_creates_no_removed_replica() -> None:
    """Its orders are refused whole, whatever their number (RM-01)."""
    node = Node()
    node.apply(state_of(epochs=(2, 3)), number=9)
    assert not node.update(controller_epoch=1, number=1)
    assert removed(node, 2, 4, number=2, controller_epoch=1) == ErrorCode.NONE
    late = LeaderAndIsrRequest(1, 0, node.broker_epoch, (state_of(epochs=(2, 3)),), number=10)
    assert node.replicas.obey_roles(late, 0.0).error == ErrorCode.STALE_CONTROLLER_EPOCH
    assert node.replicas.get(T0) is None


def test_a_removal_that_comes_late_deletes_nothing() -> None:
    """A newer state has assigned the replica again: it may be in sync by now."""
    node = Node()
    node.apply(state_of(epochs=(2, 5)))
    node.append()
    assert removed(node, 2, 4) == ErrorCode.FENCED_LEADER_EPOCH
    assert removed(node, 1, 9) == ErrorCode.FENCED_LEADER_EPOCH
    assert node.partition().is_leader
    assert removed(node, 2, 5) == ErrorCode.NONE


def test_a_removal_reaches_a_log_without_a_role() -> None:
    """The broker was away when its replica left. Of a log that is newer than the removal the store
    is an old copy: then nothing is deleted."""
    node = Node()
    node.apply(state_of(epochs=(2, 5)))
    node.append()
    node.manager.close({})
    again = Node(node.files)
    assert removed(again, 1, 9) == ErrorCode.FENCED_LEADER_EPOCH
    assert again.manager.get(T0) is not None
    assert removed(again, 2, 6) == ErrorCode.NONE
    assert again.manager.get(T0) is None


def test_a_stop_without_delete_keeps_the_log() -> None:
    """RM-13: the replica serves nothing more, but its log and partition stay."""
    node = Node()
    node.apply(state_of())
    node.append()
    node.stop(state_of(), delete=False, leader_epoch=0)
    assert not node.partition().is_leader
    assert node.partition().log.log_end == 1
    statistics = without_pause(node.replicas.statistics())
    assert [replica.role for replica in statistics.replicas] == ["offline"]
    node.apply(state_of())
    assert not node.partition().is_leader
    with pytest.raises(Refused):
        node.append()


def test_a_deletion_frees_the_name_at_once() -> None:
    """RM-13: the directory is renamed, the checkpoint forgets it, and a new topic begins empty."""
    node = Node()
    node.apply(state_of())
    node.append()
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
    node.lead()
    node.configure(segment_bytes="1000", min_insync_replicas="2")
    node.apply(state_of(OTHER))
    node.manager.close({})
    again = Node(node.files)
    again.lead(state_of(epochs=(1, 1)), overrides={"segment.bytes": "1000"})
    for log in (node.partition().log, node.partition(OTHER).log, again.partition().log):
        assert log.limits.segment_bytes == 1_000
    for name in (T0, OTHER):
        assert node.partition(name).settings.min_insync_replicas == 2
    node.configure()
    assert node.partition().log.limits.segment_bytes == node.config.log_segment_bytes


def test_settings_of_a_namesake_are_not_taken() -> None:
    """RM-11: the settings of a topic that was made anew do not reach the old topic's logs."""
    node = Node()
    node.lead()
    node.know(state_of(topic_id=b"j" * 16), overrides={"segment.bytes": "1000"})
    assert node.partition().log.limits.segment_bytes == node.config.log_segment_bytes


async def test_a_changed_demand_is_looked_at_at_once() -> None:
    """A2: a lower min ISR lets the high watermark rise without another append."""
    node = Node(min_insync_replicas="2")
    node.lead(state_of(isr=(1,), replicas=(1, 2)))
    node.append(3)
    assert node.partition().high_watermark == 0
    node.configure(min_insync_replicas="1")
    assert node.partition().high_watermark == 3


def test_a_full_order_sets_unknown_logs_aside() -> None:
    """N4: what a full order does not name is renamed, and its bytes are kept."""
    node = Node()
    node.apply(state_of(), state_of(OTHER))
    node.manager.close({})
    again = Node(node.files)
    again.apply(state_of(epochs=(1, 1)), completes_roles=True)
    names = again.files.list(ROOT)
    assert "t-0" in names
    assert "t-1" not in names
    assert any(name.startswith("t-1.") and name.endswith("-stray") for name in names)


def test_a_full_order_may_come_in_parts() -> None:
    """N4: the last part completes the roles; what an earlier part named is no stray, and a log of a
    former topic of that name makes way."""
    node = Node()
    third = TopicPartition("t", 2)
    node.apply(state_of(), state_of(OTHER), state_of(third))
    node.append(1, name=OTHER)
    node.manager.close({})
    again = Node(node.files)
    again.apply(state_of(), state_of(OTHER, topic_id=b"j" * 16))
    again.apply(completes_roles=True)
    assert again.manager.logs.keys() == {T0, OTHER}
    assert again.partition(OTHER).log.log_end == 0
    names = [name for name in again.files.list(ROOT) if name.endswith("-stray")]
    assert sorted(name[:3] for name in names) == ["t-1", "t-2"]


def test_a_full_disk_makes_no_partition_but_no_harm() -> None:
    """A log that cannot be made is told to the controller and to who asks for it, and made as soon
    as there is room; other partitions go on."""
    node = Node()
    node.apply(state_of())
    node.files.space_bytes = 0
    failed, fine = node.apply(state_of(OTHER), state_of(epochs=(0, 1)))
    assert failed.error == ErrorCode.KAFKA_STORAGE_ERROR
    assert fine.error == ErrorCode.NONE
    without_pause(node.replicas.retry(lambda: 0.0))
    with pytest.raises(Refused) as refused:
        node.services.partition(OTHER)
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    statistics = without_pause(node.replicas.statistics())
    assert ([replica.name for replica in statistics.replicas], statistics.uncreated) == ([T0], 1)
    shown = node.described()
    assert {(r.partition, r.role, r.log_end) for r in shown} == {
        (0, "leader", 0),
        (1, "offline", -1),
    }
    node.files.space_bytes = None
    without_pause(node.replicas.retry(lambda: 0.0))
    assert node.services.partition(OTHER).is_leader
    statistics = without_pause(node.replicas.statistics())
    assert ([replica.name for replica in statistics.replicas], statistics.uncreated) == (
        [T0, OTHER],
        0,
    )


def test_no_file_left_makes_no_partition_but_no_harm() -> None:
    """A process out of file descriptors is as well as full; another error of the disk is not."""
    node = Node()
    node.files.fail("open", number=errno.EMFILE)
    assert node.apply(state_of())[0].error == ErrorCode.KAFKA_STORAGE_ERROR
    node.files.fail("open", number=errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        without_pause(node.replicas.retry(lambda: 0.0))
    without_pause(node.replicas.retry(lambda: 0.0))
    assert node.partition().is_leader
    assert node.manager.statistics().strays == ()


def test_a_partition_that_was_never_made_can_be_deleted() -> None:
    """What is given up while there was no room for it is not made later."""
    node = Node()
    node.files.space_bytes = 0
    node.apply(state_of())
    assert node.stop(state_of(), delete=True, leader_epoch=0)[0].error == ErrorCode.NONE
    node.files.space_bytes = None
    without_pause(node.replicas.retry(lambda: 0.0))
    assert node.replicas.get(T0) is None
    assert node.manager.logs == {}


def test_the_high_watermark_survives_a_restart() -> None:
    """BRK-05: after a clean stop a partition begins with the checkpointed high watermark."""
    node = Node()
    node.apply(state_of(isr=(1, 2), replicas=(1, 2)))
    node.append(5)
    node.followed(2, 3)
    node.manager.close(node.replicas.high_watermarks())
    again = Node(node.files)
    again.apply(state_of(epochs=(1, 1), isr=(1, 2), replicas=(1, 2)))
    assert again.partition().high_watermark == 3
    assert again.partition().log.log_end == 5


# -- what it says of itself


def test_it_describes_every_replica() -> None:
    """DESCRIBE_REPLICAS: role, epochs and ends of each, and of logs that have no role yet."""
    node = Node()
    node.live(1, 2)
    node.apply(
        state_of(epochs=(3, 5), isr=(1, 2), replicas=(1, 2)),
        state_of(OTHER, epochs=(4, 6), leader=2, isr=(2,), replicas=(1, 2)),
    )
    node.append(3)
    node.followed(2, 2)
    led, followed = node.described()
    assert (led.role, led.leader, led.leader_epoch, led.partition_epoch) == ("leader", 1, 3, 5)
    assert (led.log_start, led.log_end, led.high_watermark, led.isr) == (0, 3, 2, (1, 2))
    assert (led.last_epoch, led.topic_id) == (3, b"i" * 16)
    assert (followed.role, followed.leader, followed.isr) == ("follower", 2, ())
    node.manager.close({T0: 2})
    again = Node(node.files)
    answer = without_pause(again.replicas.describe(DescribeReplicasRequest(("t",)), 0.0))
    assert (answer.broker_id, answer.broker_epoch) == (1, 1)
    found = {replica.partition: replica for replica in answer.replicas}[0]
    assert (found.role, found.last_epoch, found.log_end) == ("offline", 3, 3)
    assert again.described("u") == ()


def test_it_describes_the_compaction_of_compacted_logs() -> None:
    """What may be compacted, and how the last compaction ended; nothing of other logs."""
    node = Node()
    node.apply(state_of(), state_of(OTHER))
    log = node.partition().log
    log.limits = replace(log.limits, is_compacted=True, segment_bytes=200, compaction_lag_min_ms=9)
    for _ in range(6):
        node.append(1)
    bytes_below = sum(segment.size for segment in [*log._segments][:-1])
    log.compaction.last_run = LastRun(98.0, 10, 4)
    described, other = node.described(now=100.0)
    assert described.compaction == CompactionDescription(0, bytes_below, 2000, 10, 4)
    assert bytes_below > 0
    assert other.compaction is None
    log.compaction.first_dirty = log._segments[1].base_offset
    log.compaction.last_run = None
    first = log._segments[0].size
    told = node.described(now=100.0)[0].compaction
    assert told == CompactionDescription(first, bytes_below - first)


def test_a_leader_says_what_it_knows_of_its_followers() -> None:
    """A1: the remote LEO, how long ago the follower fetched, and since when it lacks something;
    nothing of the former term (PAR-17), and nothing on a follower (PAR-18)."""
    node = Node()
    node.live(1, 2, 3)
    node.apply(state_of(epochs=(3, 5), isr=(1, 2), replicas=(1, 2, 3)), now=100.0)
    unknown = (FollowerDescription(2, -1, -1, 500), FollowerDescription(3, -1, -1, -1))
    assert node.described(now=100.5)[0].followers == unknown
    node.append(3, now=101.0)
    node.followed(2, 2, now=102.0)
    node.followed(3, 3, now=102.5)
    known = (FollowerDescription(2, 2, 1000, 3000), FollowerDescription(3, 3, 500, 500))
    assert node.described(now=103.0)[0].followers == known
    node.apply(state_of(epochs=(4, 6), leader=2, isr=(1, 2), replicas=(1, 2, 3)), now=104.0)
    assert node.described(now=104.0)[0].followers == ()
    node.apply(state_of(epochs=(5, 7), isr=(1, 2), replicas=(1, 2, 3)), now=105.0)
    again = (FollowerDescription(2, -1, -1, 0), FollowerDescription(3, -1, -1, -1))
    assert node.described(now=105.0)[0].followers == again


def test_a_failed_follower_is_shown() -> None:
    """A11: a partition that failed says so, and why."""
    node = Node()
    node.apply(state_of(leader=2, isr=(2,), replicas=(1, 2)))
    role = node.partition().role
    assert isinstance(role, Follower)
    role.failure = "a cut was refused"
    (shown,) = node.described()
    assert (shown.role, shown.reason) == ("failed", "a cut was refused")


def test_ready_is_who_knows_all() -> None:
    """A broker is ready once it was told all its roles and the whole cluster."""
    node = Node(is_ready=False)
    node.apply(state_of())
    node.update(begins_image=True)
    assert not node.replicas.is_ready
    node.apply(completes_roles=True)
    assert node.replicas.is_ready
    assert node.replicas.ready.is_set()


def test_a_full_image_leaves_no_ghosts_behind_its_last_part() -> None:
    """MET-01: until then clients are told what was known; so they miss no topic meanwhile."""
    node = Node()
    other = state_of(TopicPartition("u", 0), topic_id=b"u" * 16)
    node.lead(state_of())
    node.lead(other)
    node.update(begins_image=True)
    node.know(state_of())
    assert set(node.services.image.topics) == {"t", "u"}
    node.apply(state_of(), completes_roles=True)
    assert set(node.services.image.topics) == {"t"}
    assert node.removed_topics == ["u"]
    node.update(begins_image=True)
    node.apply(state_of(), completes_roles=True)
    assert not node.services.image.topics


def test_an_order_that_comes_after_a_later_one_is_refused() -> None:
    """From a connection that the controller gave up while this broker was silent. An old beginning
    of an image would have a topic forgotten that was created since."""
    node = Node()
    assert not node.update(begins_image=True, topics=(TopicState("t", b"t" * 16),), number=2)
    node.apply(state_of(), completes_roles=True, number=3)
    late = node.update(begins_image=True, topics=(), number=1)
    assert late == ErrorCode.STALE_CONTROLLER_EPOCH
    stop = StopReplicaRequest(1, 0, node.broker_epoch, (), number=3)
    assert node.replicas.stop(stop, 0.0).error == ErrorCode.STALE_CONTROLLER_EPOCH
    node.apply(completes_roles=True, number=4)
    assert set(node.services.image.topics) == {"t"}
    assert not node.update(controller_epoch=1, number=1)  # of the next controller
    assert not node.update(controller_epoch=1, number=2)
    assert not node.update(controller_epoch=1)  # of an earlier version
    assert node.update(controller_epoch=1, number=1) == ErrorCode.STALE_CONTROLLER_EPOCH


def test_who_does_not_wait_for_followers_is_named_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """K4: acks 0 and 1 on a replicated topic are warned of, once an hour for each topic."""
    node = Node()
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    single = TopicPartition("u", 0)
    node.lead(state_of(single, topic_id=b"u" * 16))
    for now in (0.0, 3_599.0, 3_600.0):
        node.replicas.warn_of_weak_acks(node.partition(), 1, now)
        node.replicas.warn_of_weak_acks(node.partition(single), 1, now)
    warnings = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 2
    assert "acks=1" in warnings[0].getMessage()


def test_a_role_of_an_earlier_registration_is_not_present() -> None:
    """A process that stood still registers anew before it hears whom others elected meanwhile."""
    node = Node()
    node.apply(state_of(), state_of(OTHER))
    assert node.replicas.is_role_present(T0)
    node.broker_epoch += 1
    assert not node.replicas.is_role_present(T0)
    node.apply(state_of())
    assert node.replicas.is_role_present(T0)
    assert not node.replicas.is_role_present(OTHER)


def test_roles_of_an_earlier_registration_stand_when_the_controller_says_so() -> None:
    """All but those that it has refused: of these the controller believes something else."""
    node = Node()
    node.apply(state_of(epochs=(5, 0)), state_of(OTHER), completes_roles=True)
    node.apply(state_of(epochs=(4, 0)))
    node.broker_epoch += 1
    node.apply(completes_roles=True)
    assert node.replicas.is_role_present(OTHER)
    assert not node.replicas.is_role_present(T0)

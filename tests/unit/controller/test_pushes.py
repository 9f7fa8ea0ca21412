"""What a broker is told: merged, level-triggered, in parts, repeated where that can help."""

from dataclasses import replace

import pytest

from minibroker.broker.controller.entries import Office
from minibroker.broker.controller.pushes import Change, Pushes, Refusal, Told, difference
from minibroker.broker.controller.state import (
    Admission,
    PartitionRecord,
    Registered,
    State,
    Tombstone,
    TopicRecord,
)
from minibroker.protocol.constants import (
    DELETED_LEADER,
    EPOCH_DURING_DELETE,
    REQUEST_HEADER_BYTES_MAX,
    ApiKey,
    ErrorCode,
)
from minibroker.protocol.messages.control import (
    LeaderAndIsrResponse,
    PartitionObeyed,
    StopReplicaResponse,
    UpdateMetadataResponse,
)
from minibroker.protocol.rpc.codec import RequestEnvelope, encode_request
from minibroker.protocol.types import Endpoint, TopicPartition

OLD = Tombstone(b"o" * 16, "t", 2, (1, 3))


def broker(node):
    return Registered(node, 10 * node, Endpoint("h", node), "d", 1, "p")


def topic_of(name, count, *, epoch=0, replicas=(1, 2), configs=None):
    records = (PartitionRecord(n, 1, epoch, epoch, (1, 2), replicas) for n in range(count))
    return TopicRecord(name[-1].encode() * 16, name, configs or {}, tuple(records))


def state_of(*topics):
    return State(
        cluster_id="c",
        topics={topic.name: topic for topic in topics},
        brokers={node: broker(node) for node in (1, 2)},
        admissions={node: Admission(node, 10 * node, "d", 1, "p") for node in (1, 2)},
    )


def pushes_of(node=1):
    return Pushes(broker(node), Office(1, 5), 7)


def obey(pushes, taken, errors=()):
    """The answers of a broker that does everything but what is in `errors`."""
    answers = {
        ApiKey.UPDATE_METADATA: lambda request: UpdateMetadataResponse(),
        ApiKey.STOP_REPLICA: lambda request: StopReplicaResponse(),
        ApiKey.LEADER_AND_ISR: lambda request: LeaderAndIsrResponse(
            0,
            tuple(
                PartitionObeyed(one.topic, one.partition, dict(errors).get(one.partition, 0))
                for one in request.partitions
            ),
        ),
    }
    return pushes.settle(taken, [answers[push.api_key](push.request) for push in taken])


def told(state, node=1):
    """Pushes to a broker that knows this state."""
    pushes = pushes_of(node)
    assert obey(pushes, pushes.take(state)) == Told()
    assert pushes.told == pushes.wanted
    return pushes


def kinds(taken):
    return [push.api_key for push in taken]


def test_a_broker_is_told_everything_first():
    """A new registration gets the whole cluster and all its roles, both marked full (MET-01)."""
    state = state_of(
        topic_of("t", 2, configs={"flush": "never"}), topic_of("u", 1, replicas=(2, 1))
    )
    state = replace(state, topics={**state.topics, "v": topic_of("v", 1, replicas=(1, 2))})
    pushes = pushes_of(2)
    metadata, roles = pushes.take(state)
    request = metadata.request
    assert (request.controller_id, request.controller_epoch, request.broker_epoch) == (1, 7, 20)
    assert request.is_full
    assert [(one.node_id, one.epoch) for one in request.brokers] == [(1, 10), (2, 20)]
    assert [(one.name, one.partition_count) for one in request.topics] == [
        ("t", 2),
        ("u", 1),
        ("v", 1),
    ]
    assert [(one.name, one.value) for one in request.topics[0].configs] == [("flush", "never")]
    assert len(request.partitions) == 4
    assert roles.request.is_full
    assert roles.request.partitions == request.partitions
    assert roles.request.brokers == request.brokers


def test_a_broker_without_roles_is_told_so():
    """An empty full LEADER_AND_ISR is sent too: the broker waits for it to be ready."""
    assert [(push.api_key, push.request.is_full) for push in pushes_of().take(state_of())] == [
        (ApiKey.UPDATE_METADATA, True),
        (ApiKey.LEADER_AND_ISR, True),
    ]


def test_only_what_changed_is_told():
    """A change of one partition names it alone, to all in the image and to its replicas as role."""
    old = state_of(topic_of("t", 3))
    topic = old.topics["t"]
    records = list(topic.partitions)
    records[1] = replace(records[1], isr=(1,), partition_epoch=1)
    new = state_of(replace(topic, partitions=tuple(records)))
    change = difference(old, new)
    assert change == Change(partitions=(TopicPartition("t", 1),))
    for node, wanted in (
        (1, [ApiKey.UPDATE_METADATA, ApiKey.LEADER_AND_ISR]),
        (3, [ApiKey.UPDATE_METADATA]),
    ):
        pushes = told(old, node)
        pushes.note(change)
        taken = pushes.take(new)
        assert kinds(taken) == wanted
        for push in taken:
            assert not push.request.is_full
            assert [one.partition for one in push.request.partitions] == [1]
        assert taken[0].request.topics == ()


def test_changes_are_merged():
    """What changed twice before it could be told is told once, as it is now."""
    first = state_of(topic_of("t", 1))
    second = state_of(topic_of("t", 1, epoch=1))
    third = state_of(topic_of("t", 1, epoch=2))
    pushes = told(first)
    pushes.note(difference(first, second))
    pushes.note(difference(second, third))
    _, roles = pushes.take(third)
    (state,) = roles.request.partitions
    assert state.leader_epoch == 2
    assert obey(pushes, (_, roles)) == Told()
    assert pushes.told == pushes.wanted


def test_what_changes_meanwhile_is_told_next():
    """A change during a push is neither lost nor counted as told."""
    first, second = state_of(topic_of("t", 1)), state_of(topic_of("t", 1, epoch=1))
    pushes = pushes_of()
    taken = pushes.take(first)
    pushes.note(difference(first, second))
    obey(pushes, taken)
    assert pushes.told < pushes.wanted
    assert [push.request.partitions[0].leader_epoch for push in pushes.take(second)] == [1, 1]


@pytest.mark.parametrize("is_answered", [True, False])
def test_after_a_failure_everything_is_told(is_answered):
    """A lost connection, or a refusal as a whole: nothing counts as told, the next is full."""
    state = state_of(topic_of("t", 1))
    pushes = told(state)
    pushes.note(Change(has_other_brokers=True))
    taken = pushes.take(state)
    if is_answered:
        stale = UpdateMetadataResponse(ErrorCode.STALE_BROKER_EPOCH)
        assert pushes.settle(taken, [stale]) is None
    else:
        pushes.fail()
    assert pushes.told < pushes.wanted
    assert [push.request.is_full for push in pushes.take(state)] == [True, True]


def test_a_deleted_topic():
    """Leader -2 in the image, then STOP_REPLICA with delete, once for each of its holders."""
    old, new = state_of(topic_of("t", 2)), replace(state_of(), tombstones={OLD.id: OLD})
    for node, wanted in (
        (1, [ApiKey.UPDATE_METADATA, ApiKey.STOP_REPLICA]),
        (2, [ApiKey.UPDATE_METADATA]),
    ):
        pushes = told(old, node)
        pushes.note(difference(old, new))
        pushes.stop(new.tombstones.values())
        taken = pushes.take(new)
        assert kinds(taken) == wanted
        (deleted,) = taken[0].request.partitions
        assert (deleted.topic, deleted.leader) == ("t", DELETED_LEADER)
        if node == 1:
            stops = taken[1].request.partitions
            assert [(one.topic_id, one.partition) for one in stops] == [(OLD.id, 0), (OLD.id, 1)]
            assert all(one.delete and one.leader_epoch == EPOCH_DURING_DELETE for one in stops)
            assert obey(pushes, taken) == Told((OLD.id,))
            assert pushes.take(new) == ()


def test_a_deletion_comes_before_the_new_topic_of_the_name():
    """The image names the new id alone; the old replica goes before the new one comes."""
    old, new = state_of(topic_of("t", 2)), state_of(topic_of("t", 1))
    new = state_of(replace(new.topics["t"], id=b"n" * 16))
    pushes = told(old)
    pushes.note(difference(old, new))
    pushes.stop([OLD])
    metadata, stop, roles = pushes.take(new)
    assert [one.id for one in metadata.request.topics] == [b"n" * 16]
    assert [one.leader for one in metadata.request.partitions] == [1]
    assert kinds((stop, roles)) == [ApiKey.STOP_REPLICA, ApiKey.LEADER_AND_ISR]


def test_a_deletion_that_failed_is_repeated():
    """A tombstone is acknowledged only when every partition of it went."""
    pushes = told(state_of())
    pushes.stop([OLD])
    taken = pushes.take(state_of())
    failed = PartitionObeyed("t", 1, ErrorCode.KAFKA_STORAGE_ERROR)
    assert pushes.settle(taken, [StopReplicaResponse(0, (failed,))]) == Told()
    assert kinds(pushes.take(state_of())) == [ApiKey.STOP_REPLICA]


@pytest.mark.parametrize(
    ("error", "is_repeated"),
    [
        (ErrorCode.KAFKA_STORAGE_ERROR, True),
        (ErrorCode.INCONSISTENT_TOPIC_ID, True),
        (ErrorCode.FENCED_LEADER_EPOCH, False),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, False),
    ],
)
def test_a_refused_partition(error, is_repeated):
    """It is reported; where a later try can help it is told again, and alone."""
    state = state_of(topic_of("t", 3))
    pushes = pushes_of()
    name = TopicPartition("t", 1)
    assert obey(pushes, pushes.take(state), {1: error}) == Told((), (Refusal(name, error),))
    assert pushes.unmade == ({name: error} if is_repeated else {})
    assert pushes.told == pushes.wanted
    pushes.repeat()
    taken = pushes.take(state)
    assert bool(taken) == is_repeated
    if is_repeated:
        assert [one.partition for one in taken[-1].request.partitions] == [1]
        obey(pushes, taken)
        assert pushes.unmade == {}


def test_a_refused_partition_that_was_deleted_is_not_repeated():
    """What is no more is not told again."""
    state = state_of(topic_of("t", 1))
    pushes = pushes_of()
    obey(pushes, pushes.take(state), {0: ErrorCode.KAFKA_STORAGE_ERROR})
    pushes.repeat()
    obey(pushes, pushes.take(state_of()))
    assert pushes.unmade == {}


def test_a_large_push_comes_in_parts():
    """Each part fits a request; of the image the first is full, of the roles the last."""
    long = "x" * 240
    state = state_of(
        *(topic_of(f"{long}{n}", 9, epoch=1, configs={"flush": "always"}) for n in range(500))
    )
    taken = pushes_of().take(state)
    for push in taken:
        header = encode_request(RequestEnvelope(push.api_key, 0, 1, "c", push.request))
        assert sum(map(len, header)) < REQUEST_HEADER_BYTES_MAX
    for api_key, first, last in (
        (ApiKey.UPDATE_METADATA, True, False),
        (ApiKey.LEADER_AND_ISR, False, True),
    ):
        parts = [push.request for push in taken if push.api_key == api_key]
        assert len(parts) > 2
        assert [part.is_full for part in parts] == [first, *[False] * (len(parts) - 2), last]
        assert sum(len(part.partitions) for part in parts) == 4_500


def test_new_partitions_come_last_and_in_small_parts():
    """Making a log takes a broker's time: a few at once, so that its session does not end."""
    state = state_of(topic_of("new", 10), topic_of("old", 300, epoch=1))
    parts = [push.request for push in pushes_of().take(state)[1:]]
    assert [len(part.partitions) for part in parts] == [303, 4, 3]
    assert {one.topic for one in parts[0].partitions[:300]} == {"old"}

"""What a broker is told: merged, level-triggered, in parts, repeated where that can help."""

from dataclasses import replace
from random import Random

import pytest

from minibroker.broker.controller.entries import ActiveController
from minibroker.broker.controller.plans import Change
from minibroker.broker.controller.pushes import Acknowledgement, Pushes, Refusal
from minibroker.broker.controller.state import (
    Admission,
    BrokerRegistration,
    PartitionRecord,
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
from minibroker.protocol.messages import RequestEnvelope
from minibroker.protocol.messages.control import (
    LeaderAndIsrResponse,
    PartitionObeyed,
    StoppedPartition,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from minibroker.protocol.rpc.codec import encode_request
from minibroker.protocol.types import Endpoint, TopicPartition
from tests.unit.controller.electing import difference

OLD = Tombstone(b"o" * 16, "t", 2, (1, 3))


def broker(node):
    return BrokerRegistration(node, 10 * node, Endpoint("h", node), "d", 1, "p")


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
    return Pushes(broker(node), ActiveController(1, 5), 7)


def answer_of(push, errors=()):
    """The answer of a broker that does everything but what is in `errors`."""
    error_of = dict(errors)
    if push.api_key == ApiKey.UPDATE_METADATA:
        return UpdateMetadataResponse()
    kind = LeaderAndIsrResponse if push.api_key == ApiKey.LEADER_AND_ISR else StopReplicaResponse
    obeyed = (
        PartitionObeyed(one.topic, one.partition, error_of.get(one.partition, 0))
        for one in push.request.partitions
    )
    return kind(0, tuple(obeyed))


def tell(pushes, state, errors=()):
    """All that there is to tell, each request answered; and what came of it."""
    taken, came = [], Acknowledgement()
    while (push := pushes.next(state)) is not None:
        taken.append(push)
        told = pushes.handle_response(push, answer_of(push, errors))
        came = Acknowledgement(*(one + more for one, more in zip(came, told, strict=True)))
        assert len(taken) < 1000
    assert not pushes.has_more
    assert pushes.acknowledged == pushes.change_count
    return taken, came


def told(state, node=1):
    """Pushes to a broker that knows this state."""
    pushes = pushes_of(node)
    _, came = tell(pushes, state)
    assert came == Acknowledgement()
    return pushes


def kinds(taken):
    return [push.api_key for push in taken]


def is_marked(request):
    """Whether a full image begins with it, or the roles are complete with it."""
    if isinstance(request, UpdateMetadataRequest):
        return request.begins_image
    return request.completes_roles


def test_a_broker_is_told_everything_first():
    """A new registration gets a full image and all its roles, both marked so (MET-01)."""
    state = state_of(
        topic_of("t", 2, configs={"flush": "never"}), topic_of("u", 1, replicas=(2, 1))
    )
    state = replace(state, topics={**state.topics, "v": topic_of("v", 1, replicas=(1, 2))})
    pushes = pushes_of(2)
    (metadata, roles), _ = tell(pushes, state)
    request = metadata.request
    assert (request.controller_id, request.controller_epoch, request.broker_epoch) == (1, 7, 20)
    assert request.begins_image
    assert [(one.node_id, one.epoch) for one in request.brokers] == [(1, 10), (2, 20)]
    assert [(one.name, one.partition_count) for one in request.topics] == [
        ("t", 2),
        ("u", 1),
        ("v", 1),
    ]
    assert [(one.name, one.value) for one in request.topics[0].configs] == [("flush", "never")]
    assert len(request.partitions) == 4
    assert roles.request.completes_roles
    assert roles.request.partitions == request.partitions
    assert roles.request.brokers == request.brokers


def test_a_broker_without_roles_is_told_so():
    """An empty LEADER_AND_ISR completes the roles: the broker waits for it to be ready."""
    taken, _ = tell(pushes_of(), state_of())
    assert [(push.api_key, is_marked(push.request)) for push in taken] == [
        (ApiKey.UPDATE_METADATA, True),
        (ApiKey.LEADER_AND_ISR, True),
    ]


def test_a_process_that_registers_anew_is_told_what_it_missed():
    """And that all else of it stands, in the name of its new registration."""
    old = state_of(topic_of("t", 300))
    pushes = told(old)
    topic = old.topics["t"]
    records = (replace(topic.partitions[0], partition_epoch=1), *topic.partitions[1:])
    state = replace(old, topics={"t": replace(topic, partitions=records)})
    pushes.add(difference(old, state))
    pushes.renew(replace(broker(1), epoch=99))
    (metadata, roles), _ = tell(pushes, state)
    assert [push.request.broker_epoch for push in (metadata, roles)] == [99, 99]
    assert not metadata.request.begins_image
    assert [one.partition for one in metadata.request.partitions] == [0]
    assert [one.partition for one in roles.request.partitions] == [0]
    assert roles.request.completes_roles


def test_what_was_under_way_is_told_to_the_next_registration():
    """Nobody knows whether the process has taken it."""
    state = state_of(topic_of("t", 3))
    pushes = pushes_of()
    metadata = pushes.next(state)
    pushes.renew(replace(broker(1), epoch=99))
    again, roles = tell(pushes, state)[0]
    assert again.request == replace(metadata.request, broker_epoch=99)
    assert len(roles.request.partitions) == 3


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
        pushes.add(change)
        taken, _ = tell(pushes, new)
        assert kinds(taken) == wanted
        for push in taken:
            assert not is_marked(push.request)
            assert [one.partition for one in push.request.partitions] == [1]
        assert taken[0].request.topics == ()


def test_changes_are_merged():
    """What changed twice before it could be told is told once, as it is now."""
    first = state_of(topic_of("t", 1))
    second = state_of(topic_of("t", 1, epoch=1))
    third = state_of(topic_of("t", 1, epoch=2))
    pushes = told(first)
    pushes.add(difference(first, second))
    pushes.add(difference(second, third))
    (_, roles), _ = tell(pushes, third)
    (state,) = roles.request.partitions
    assert state.leader_epoch == 2


def test_what_changes_meanwhile_is_told_next():
    """A change while a request is under way is neither lost nor counted as told."""
    first, second = state_of(topic_of("t", 1)), state_of(topic_of("t", 1, epoch=1))
    pushes = pushes_of()
    metadata = pushes.next(first)
    pushes.add(difference(first, second))
    pushes.handle_response(metadata, answer_of(metadata))
    assert pushes.acknowledged < pushes.change_count
    taken, _ = tell(pushes, second)
    assert [push.request.partitions[0].leader_epoch for push in taken] == [1, 1]
    assert kinds(taken) == [ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA]


@pytest.mark.parametrize("is_answered", [True, False])
@pytest.mark.parametrize("lost", range(7))
def test_what_was_acknowledged_is_not_told_again(is_answered, lost):
    """After a lost connection, or a refusal as a whole, the request that was under way is made
    again, and nothing that was told before."""
    topics = [topic_of(f"t{n}", 90, epoch=1, replicas=(1, 2)) for n in range(3)]
    state = replace(state_of(*topics), tombstones={OLD.id: OLD})
    pushes = pushes_of()
    pushes.stop([OLD])
    named = []
    for number in range(1000):
        push = pushes.next(state)
        if push is None:
            break
        if number != lost:
            named += [(push.api_key, one.topic, one.partition) for one in push.request.partitions]
            pushes.handle_response(push, answer_of(push))
        elif is_answered:
            stale = type(answer_of(push))(ErrorCode.STALE_BROKER_EPOCH)
            assert pushes.handle_response(push, stale) is None
            assert pushes.acknowledged < pushes.change_count
        else:
            pushes.fail()
            assert pushes.acknowledged < pushes.change_count
    assert pushes.acknowledged == pushes.change_count
    assert len(named) == len(set(named)) == 2 * 270 + 2


def test_a_stream_of_changes_holds_nothing_up():
    """What changed first is told first: a role does not wait for the image of what changes later,
    and who waits for a change is not kept by those after it."""
    state = state_of(topic_of("t", 10, epoch=1))
    pushes = told(state)
    pushes.add(Change(partitions=(TopicPartition("t", 0),)))
    mark = pushes.change_count
    taken = []
    for number in range(1, 10):
        push = pushes.next(state)
        pushes.add(Change(partitions=(TopicPartition("t", number),)))
        pushes.handle_response(push, answer_of(push))
        taken.append(push.api_key)
        if pushes.acknowledged >= mark:
            break
    assert taken == [ApiKey.UPDATE_METADATA, ApiKey.LEADER_AND_ISR]
    assert pushes.acknowledged < pushes.change_count
    tell(pushes, state)


def test_a_deleted_topic():
    """Leader -2 in the image, then STOP_REPLICA with delete, once for each of its holders."""
    old, new = state_of(topic_of("t", 2)), replace(state_of(), tombstones={OLD.id: OLD})
    for node, wanted in (
        (1, [ApiKey.UPDATE_METADATA, ApiKey.STOP_REPLICA]),
        (2, [ApiKey.UPDATE_METADATA]),
    ):
        pushes = told(old, node)
        pushes.add(difference(old, new))
        pushes.stop(new.tombstones.values())
        taken, came = tell(pushes, new)
        assert kinds(taken) == wanted
        (deleted,) = taken[0].request.partitions
        assert (deleted.topic, deleted.leader) == ("t", DELETED_LEADER)
        if node == 1:
            stops = taken[1].request.partitions
            assert [(one.topic_id, one.partition) for one in stops] == [(OLD.id, 0), (OLD.id, 1)]
            assert all(one.delete and one.leader_epoch == EPOCH_DURING_DELETE for one in stops)
            assert came == Acknowledgement((OLD.id,))
            assert pushes.next(new) is None


def test_a_deletion_comes_before_the_new_topic_of_the_name():
    """The image names the new id alone; the old replica goes before the new one comes."""
    old, new = state_of(topic_of("t", 2)), state_of(topic_of("t", 1))
    new = state_of(replace(new.topics["t"], id=b"n" * 16))
    pushes = told(old)
    pushes.add(difference(old, new))
    pushes.stop([OLD])
    (metadata, stop, roles), _ = tell(pushes, new)
    assert [one.id for one in metadata.request.topics] == [b"n" * 16]
    assert [one.leader for one in metadata.request.partitions] == [1]
    assert kinds((stop, roles)) == [ApiKey.STOP_REPLICA, ApiKey.LEADER_AND_ISR]


def moved(state, *, replicas, former=(), isr=None):
    """The state in which a reassignment has changed t-0."""
    topic = state.topics["t"]
    record = topic.partitions[0]
    changed = replace(
        record,
        leader=replicas[0],
        isr=isr or replicas,
        replicas=replicas,
        former=former,
        partition_epoch=record.partition_epoch + 1,
    )
    partitions = (changed, *topic.partitions[1:])
    return replace(state, topics={"t": replace(topic, partitions=partitions)})


def test_a_removed_replica():
    """STOP_REPLICA with the epochs of the state in which it is gone, by the id of its topic, to its
    own broker alone; who holds it then says so."""
    old = state_of(topic_of("t", 2, epoch=3))
    new = moved(old, replicas=(1,), former=(2,))
    for node, wanted in ((1, ApiKey.LEADER_AND_ISR), (2, ApiKey.STOP_REPLICA)):
        pushes = told(old, node)
        pushes.add(difference(old, new))
        (metadata, order), came = tell(pushes, new)
        assert kinds((metadata, order)) == [ApiKey.UPDATE_METADATA, wanted]
        if node == 2:
            assert order.request.partitions == (StoppedPartition("t", b"t" * 16, 0, 3, True, 4),)
            assert came == Acknowledgement(removed=((TopicPartition("t", 0), b"t" * 16),))


def test_a_removed_replica_goes_before_the_roles_are_complete():
    """Of a broker that was away: a log without a role would be kept as a stray."""
    state = moved(state_of(topic_of("t", 2, epoch=3)), replicas=(1,), former=(2,))
    taken, came = tell(pushes_of(2), state)
    metadata, roles, stop, last = taken
    assert kinds((metadata, stop)) == [ApiKey.UPDATE_METADATA, ApiKey.STOP_REPLICA]
    assert [is_marked(one.request) for one in (metadata, roles, last)] == [True, False, True]
    assert [one.partition for one in roles.request.partitions] == [1]
    assert came.removed == ((TopicPartition("t", 0), b"t" * 16),)


def test_a_removal_that_failed_is_repeated_while_it_holds():
    """If the replica was assigned again in the meantime, its role is all that is told."""
    old = state_of(topic_of("t", 1, epoch=3))
    new = moved(old, replicas=(1,), former=(2,))
    pushes = told(old, 2)
    pushes.add(difference(old, new))
    _, came = tell(pushes, new, {0: ErrorCode.FENCED_LEADER_EPOCH})
    refusal = Refusal(TopicPartition("t", 0), ErrorCode.FENCED_LEADER_EPOCH)
    assert came == Acknowledgement(refusals=(refusal,))
    assert pushes.has_refused
    pushes.repeat()
    taken, came = tell(pushes, new, {0: ErrorCode.FENCED_LEADER_EPOCH})
    assert kinds(taken) == [ApiKey.STOP_REPLICA]
    again = moved(new, replicas=(1, 2), isr=(1,))
    pushes.add(difference(new, again))
    pushes.repeat()
    assert kinds(tell(pushes, again)[0]) == [ApiKey.UPDATE_METADATA, ApiKey.LEADER_AND_ISR]
    assert not pushes.has_refused


def test_a_deletion_that_failed_is_repeated():
    """A tombstone is acknowledged only when every partition of it went; what failed is told again,
    alone."""
    pushes = told(state_of())
    pushes.stop([OLD])
    taken, came = tell(pushes, state_of(), {1: ErrorCode.KAFKA_STORAGE_ERROR})
    assert kinds(taken) == [ApiKey.STOP_REPLICA]
    assert came == Acknowledgement()
    assert pushes.has_refused
    pushes.repeat()
    (stop,), came = tell(pushes, state_of())
    assert [one.partition for one in stop.request.partitions] == [1]
    assert came == Acknowledgement((OLD.id,))
    assert not pushes.has_refused


def test_many_deletions_come_in_parts():
    """Setting a log aside takes a broker's time, too."""
    many = Tombstone(b"m" * 16, "t", 50, (1,))
    pushes = told(state_of())
    pushes.stop([many, OLD])
    taken, came = tell(pushes, state_of())
    assert [len(push.request.partitions) for push in taken] == [20, 20, 12]
    assert came == Acknowledgement((many.id, OLD.id))


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
    assert tell(pushes, state, {1: error})[1] == Acknowledgement((), (Refusal(name, error),))
    assert pushes.uncreated == ({name: error} if is_repeated else {})
    pushes.repeat()
    taken, _ = tell(pushes, state)
    assert bool(taken) == is_repeated
    if is_repeated:
        assert [one.partition for one in taken[-1].request.partitions] == [1]
        assert pushes.uncreated == {}


def test_a_refused_partition_that_was_deleted_is_not_repeated():
    """What is no more is not told again."""
    state = state_of(topic_of("t", 1))
    pushes = pushes_of()
    tell(pushes, state, {0: ErrorCode.KAFKA_STORAGE_ERROR})
    pushes.repeat()
    tell(pushes, state_of())
    assert pushes.uncreated == {}


def test_a_large_push_comes_in_parts():
    """Each part fits a request; of the image the first is full, of the roles the last."""
    long = "x" * 240
    state = state_of(
        *(topic_of(f"{long}{n}", 9, epoch=1, configs={"flush": "always"}) for n in range(500))
    )
    taken, _ = tell(pushes_of(), state)
    for push in taken:
        header = encode_request(RequestEnvelope(push.api_key, 0, 1, "c", push.request))
        assert sum(map(len, header)) < REQUEST_HEADER_BYTES_MAX
    for api_key, first, last in (
        (ApiKey.UPDATE_METADATA, True, False),
        (ApiKey.LEADER_AND_ISR, False, True),
    ):
        parts = [push.request for push in taken if push.api_key == api_key]
        assert len(parts) > 2
        assert [is_marked(part) for part in parts] == [first, *[False] * (len(parts) - 2), last]
        assert sum(len(part.partitions) for part in parts) == 4_500


def test_new_partitions_come_last_and_in_small_parts():
    """Making a log takes a broker's time: a few at once, so that its loop goes on meanwhile."""
    state = state_of(topic_of("new", 10), topic_of("old", 100, epoch=1))
    taken, _ = tell(pushes_of(), state)
    parts = [push.request for push in taken[1:]]
    assert [len(part.partitions) for part in parts] == [80, 23, 4, 3]
    assert {one.topic for one in (*parts[0].partitions, *parts[1].partitions[:20])} == {"old"}
    assert [part.completes_roles for part in parts] == [False, False, False, True]


def test_a_partition_that_changed_before_it_was_told_is_still_new():
    """Its leader has put out the follower that was not told in time: the log is to be made."""
    old = state_of()
    pushes = told(old)
    state = state_of(topic_of("t", 10, epoch=1))
    pushes.add(difference(old, state))
    taken, _ = tell(pushes, state)
    roles = [push.request for push in taken if push.api_key == ApiKey.LEADER_AND_ISR]
    assert [len(one.partitions) for one in roles] == [4, 4, 2]
    again = state_of(topic_of("t", 10, epoch=2))
    pushes.add(difference(state, again))
    assert [len(push.request.partitions) for push in tell(pushes, again)[0]] == [10, 10]


def test_a_role_waits_for_the_settings_of_its_topic():
    """A topic made anew, while a role of the old one was still to be told: settings, then the end
    of the old one, then the role."""
    old = state_of(topic_of("t", 1, epoch=1))
    pushes = told(old)
    pushes.add(Change(partitions=(TopicPartition("t", 0),)))
    metadata = pushes.next(old)
    new = state_of(replace(topic_of("t", 1), id=b"n" * 16))
    pushes.add(difference(old, new))
    pushes.handle_response(metadata, answer_of(metadata))
    pushes.stop([OLD])
    taken, _ = tell(pushes, new)
    roles = [one.topic_id for one in taken[-1].request.partitions]
    assert (kinds(taken)[-1], roles) == (ApiKey.LEADER_AND_ISR, [b"n" * 16])
    assert set(kinds(taken)[:-1]) == {ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA}


@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 600), marks=pytest.mark.soak)])
def test_pushes_end_with_all_told_whatever_changes(seeds):
    """Random changes, failures and answers: in the end the broker knows the state, each request
    fits, and a role never comes before the settings of its topic."""
    for seed in seeds:
        check_random(seed)


def check_random(seed):
    """One scenario, to be repeated with its seed."""
    rng = Random(seed)
    state, pushes = state_of(), pushes_of()
    image, settings, roles = {}, {}, {}
    is_done = False
    while not is_done:
        is_ending = rng.random() < 0.03
        for _ in range(0 if is_ending else rng.choice((0, 0, 1, 3))):
            before, state = state, changed(state, rng)
            pushes.add(difference(before, state))
        while (push := pushes.next(state)) is not None:
            is_taken, is_answered = rng.random() < 0.9, rng.random() < 0.9
            if is_taken or is_ending:
                take(push, image, settings, roles, seed)
            if is_ending or (is_taken and is_answered):
                pushes.handle_response(push, answer_of(push))
            else:
                pushes.fail()
            if not is_ending and rng.random() < 0.3:
                break
        if rng.random() < 0.1:
            pushes.renew(replace(pushes.broker, epoch=pushes.broker.epoch + 1))
        is_done = is_ending and not pushes.has_more
    assert pushes.acknowledged == pushes.change_count, seed
    names = {name for name, _ in state.partitions()}
    assert {name: image[name] for name in names} == dict(state.partitions()), seed
    assert {name: roles[name] for name in names} == dict(state.partitions()), seed
    assert set(state.topics) == set(settings), seed


def changed(state, rng):
    """Another topic, none of that name any more, or another in-sync set."""
    name = rng.choice("tuvw")
    topic = state.topics.get(name)
    topics = dict(state.topics)
    if topic is None:
        count = rng.choice((1, 3, 200))
        topics[name] = replace(topic_of(name, count, replicas=(1, 2)), id=rng.randbytes(16))
    elif rng.random() < 0.2:
        del topics[name]
    else:
        records = list(topic.partitions)
        for record in rng.sample(records, min(len(records), rng.choice((1, 50)))):
            records[record.number] = replace(record, partition_epoch=record.partition_epoch + 1)
        topics[name] = replace(topic, partitions=tuple(records))
    return replace(state, topics=topics)


def take(push, image, settings, roles, seed):
    """What a broker makes of a request."""
    if push.api_key == ApiKey.UPDATE_METADATA:
        for topic in push.request.topics:
            settings[topic.name] = topic.id
        for one in push.request.partitions:
            if one.leader == DELETED_LEADER:
                settings.pop(one.topic, None)
            else:
                image[TopicPartition(one.topic, one.partition)] = record_of(one)
    else:
        for one in push.request.partitions:
            assert settings[one.topic] == one.topic_id, seed
            roles[TopicPartition(one.topic, one.partition)] = record_of(one)


def record_of(one):
    epochs = one.leader_epoch, one.partition_epoch
    return PartitionRecord(one.partition, one.leader, *epochs, one.isr, one.replicas)

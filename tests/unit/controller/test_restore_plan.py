"""What a restore writes, and what it says before."""

from dataclasses import replace

import pytest

from minibroker.broker.controller import entries
from minibroker.broker.controller.backup import BackupError, backup_of
from minibroker.broker.controller.restore_plan import (
    CONTROLLER_EPOCHS_SKIPPED,
    PRODUCER_IDS_SKIPPED,
    plan_restore,
)
from minibroker.broker.controller.state import (
    Admission,
    BrokerRegistration,
    PartitionRecord,
    Reassignment,
    Tombstone,
    TopicRecord,
)
from minibroker.broker.metadata.store import ABSENT, Compare, Delete, Entry, Put, Snapshot
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import NO_NODE
from minibroker.protocol.types import Endpoint

EMPTY = Snapshot(0, {})
RECORD = PartitionRecord(0, 1, 5, 9, (1, 2), (1, 2), former=(3,), unclean_epoch=4)


def topic(name="t", *records, id_byte=b"i", **configs):
    return TopicRecord(id_byte * 16, name, configs, records or (RECORD,), 7)


def store_of(*topics, nodes=(1, 2, 3), extra=(), cluster_id="c", epoch=7, producer_id=3_000):
    """The store of a cluster that is stopped."""
    puts = [
        entries.cluster_id_put(cluster_id),
        entries.controller_epoch_put(epoch),
        entries.producer_ids_put(producer_id),
        *(entries.admission_put(Admission(node, 3, "d", 1, "p")) for node in nodes),
        *(entries.partition_put(each.id, one) for each in topics for one in each.partitions),
        *map(entries.topic_put, topics),
        *extra,
    ]
    return Snapshot(12, {put.key: Entry(put.value, 12) for put in puts})


def restored(backup_store, store=EMPTY, brokers=None, now_ms=0):
    """The plan, the state after it, and all entries."""
    plan = plan_restore(backup_of(backup_store, 5), store, now_ms, brokers)
    found = dict(store.entries)
    for write in plan.writes:
        if isinstance(write, Put):
            found[write.key] = Entry(write.value, 13)
        else:
            found.pop(write.key, None)
    return plan, without_pause(entries.read_state(found)), found


def test_into_an_empty_store():
    """Every partition waits for the logs of all brokers that were known, also those without a
    replica then; no replica is deleted as a former one."""
    plan, state, found = restored(store_of(topic(flush="always")))
    assert (plan.returning, plan.brokers, state.cluster_id) == (("t",), (1, 2, 3), "c")
    assert state.topics["t"].configs == {"flush": "always"}
    [record] = state.topics["t"].partitions
    assert record == PartitionRecord(
        number=0,
        leader=NO_NODE,
        leader_epoch=5,
        partition_epoch=10,
        isr=(1, 2, 3),
        replicas=(1, 2, 3),
        unsafe=(1, 2, 3),
        reassignment=Reassignment((1, 2, 3), (1, 2)),
        unclean_epoch=4,
        is_restored=True,
    )
    assert not [key for key in found if key.startswith((entries.ADMISSIONS, entries.BROKERS))]


def test_all_replicas_are_known():
    """Nothing is reassigned where every broker has a replica."""
    record = replace(RECORD, replicas=(3, 1, 2), former=())
    _, state, _ = restored(store_of(topic("t", record)))
    [record] = state.topics["t"].partitions
    assert (record.replicas, record.reassignment) == ((3, 1, 2), None)


def test_a_reassignment_goes_on_to_its_target():
    """What it was adding has perhaps been added, and what it was removing removed."""
    record = replace(RECORD, reassignment=Reassignment((1, 2), (4, 1)), former=())
    _, state, _ = restored(store_of(topic("t", record)))
    [record] = state.topics["t"].partitions
    assert record.replicas == record.isr == (4, 1, 2, 3)
    assert record.target == (4, 1)


@pytest.mark.parametrize(
    ("brokers", "replicas", "compared"),
    [
        ((1,), (1, 2), (1,)),
        ((2, 7), (1, 2, 7), (2, 7)),
        ((7,), (1, 2, 7), (7,)),
    ],
)
def test_brokers_may_be_named(brokers, replicas, compared):
    """One is lost for good, or joined after the backup; the assignment stays."""
    _, state, _ = restored(store_of(topic()), brokers=brokers)
    [record] = state.topics["t"].partitions
    assert (record.replicas, record.isr) == (replicas, compared)
    assert record.target == (1, 2)


def test_what_the_store_knows_of_a_partition_is_newer():
    """Its assignment and number of partitions stay, epochs do not fall; settings go back."""
    now = replace(RECORD, leader=4, isr=(4,), replicas=(4, 5), leader_epoch=8, former=())
    second = replace(RECORD, number=1, former=())
    store = store_of(topic("t", now, second, flush="never"), nodes=(4, 5))
    older = topic("t", replace(RECORD, partition_epoch=70), flush="always")
    plan, state, _ = restored(store_of(older), store)
    assert (plan.returning, plan.reset, plan.newer) == ((), ("t",), ())
    first, second = state.topics["t"].partitions
    assert (first.leader_epoch, first.partition_epoch, first.target) == (8, 71, (4, 5))
    assert first.isr == (4, 5, 1, 2, 3)
    assert second.target == (1, 2)
    assert state.topics["t"].configs == {"flush": "always"}


def test_a_store_that_was_set_back():
    """The backup has more partitions, and later epochs."""
    later = topic("t", replace(RECORD, leader_epoch=20), replace(RECORD, number=1))
    _, state, _ = restored(store_of(later), store_of(topic("t", RECORD)))
    assert [record.leader_epoch for record in state.topics["t"].partitions] == [20, 5]


def test_what_is_newer_stays():
    """Topics created since, and created again since. Their partitions wait as well."""
    store = store_of(topic("new", id_byte=b"n"), topic("again", id_byte=b"2"))
    plan, state, _ = restored(store_of(topic("again", id_byte=b"1")), store)
    assert (plan.newer, plan.recreated, plan.returning) == (("new",), ("again",), ())
    assert state.topics["again"].id == b"2" * 16
    assert all(record.is_restored for _, record in state.partitions())


def test_a_deleted_topic_returns():
    """Its tombstone goes: a broker that still has its log keeps it. Other tombstones stay, and
    those of the backup delete nothing."""
    graves = [entries.tombstone_put(Tombstone(byte * 16, "gone", 1, (1,))) for byte in (b"i", b"o")]
    old = store_of(topic(), extra=[entries.tombstone_put(Tombstone(b"z" * 16, "gone", 1, (1,)))])
    plan, state, _ = restored(old, store_of(extra=graves))
    assert plan.returning == ("t",)
    assert "t" in state.topics
    assert state.tombstones.keys() == {b"o" * 16}


def test_settings_of_groups_and_brokers():
    """They are those of the backup; what it does not name stays."""
    then = [entries.group_write("g", {"a": "1"}), entries.group_write("same", {"a": "1"})]
    now = [entries.group_write("g", {"a": "2"}), *then[1:], entries.group_write("h", {"a": "3"})]
    plan, state, _ = restored(store_of(extra=then), store_of(extra=now))
    assert plan.settings == 1
    assert state.groups == {"g": {"a": "1"}, "same": {"a": "1"}, "h": {"a": "3"}}


@pytest.mark.parametrize("store", [EMPTY, store_of(epoch=9, producer_id=8_000)])
def test_no_number_is_used_twice(store):
    """Above what backup and store say, and what the clock says: the next restore differs."""
    plan, _, found = restored(store_of(), store)
    epoch, first_id = (7, 3_000) if store is EMPTY else (9, 8_000)
    assert entries.read_controller_epoch(found) == epoch + CONTROLLER_EPOCHS_SKIPPED
    assert entries.read_producer_ids(found) == first_id + PRODUCER_IDS_SKIPPED
    counters = []
    for now_ms in (1_800_000_000_000, 1_800_000_001_000, 10**15):
        _, _, found = restored(store_of(), store, now_ms=now_ms)
        ids = entries.read_producer_ids(found)
        assert ids % 1_000 == 0
        assert ids < 2**62
        counters.append((entries.read_controller_epoch(found), ids))
    assert sorted(set(counters)) == counters
    assert plan.writes[-1] == Delete(entries.RESTORE)


def test_nothing_may_change_meanwhile():
    """A broker that starts, or another restore, makes the transaction fail."""
    plan, _, _ = restored(store_of(), store_of(nodes=(4,), extra=[Put(entries.RESTORE, b"{}")]))
    assert {*plan.compare} == {
        Compare(entries.CONTROLLER, ABSENT),
        *(Compare(entries.broker_key(node), ABSENT) for node in (1, 2, 3, 4)),
        Compare(entries.CLUSTER_ID, 12),
        Compare(entries.RESTORE, 12),
        Compare(entries.CONTROLLER_EPOCH, 12),
        Compare(entries.PRODUCER_IDS, 12),
    }


@pytest.mark.parametrize(
    ("store", "reason"),
    [
        (store_of(cluster_id="d"), "cluster 'c', and the metadata store is that of 'd': name the"),
        (
            store_of(
                extra=[
                    entries.broker_put(
                        BrokerRegistration(node, 0, Endpoint("h", 1), "d", 1, "p"), 1
                    )
                    for node in (2, 1)
                ]
            ),
            "brokers 1, 2 must not run during a restore: stop all brokers",
        ),
        (
            store_of(extra=entries.active_controller_puts(3, 7, 1)[:1]),
            "broker 3 must not run during a restore",
        ),
    ],
)
def test_where_a_backup_cannot_be_restored(store, reason):
    """One sentence says what to do."""
    with pytest.raises(BackupError, match=reason):
        restored(store_of(topic()), store)

"""The table of committed offsets: what the records of one partition say."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.coordination.shard import partition_of
from minibroker.broker.groups.offsets import OffsetTable
from minibroker.broker.groups.records import (
    CommittedOffset,
    GroupKey,
    GroupMetadata,
    Key,
    OffsetKey,
    StoredMember,
    Value,
)
from minibroker.protocol.types import TopicPartition

MEMBER = StoredMember("m", None, "c", "h", 1, 1, b"", b"")
EMPTY = GroupMetadata("consumer", 1, state_timestamp_ms=100)
FULL = GroupMetadata("consumer", 1, "range", "m", 100, (MEMBER,))

offset_keys = st.builds(OffsetKey, st.sampled_from("gh"), st.sampled_from("tu"), st.integers(0, 1))
offset_records = st.tuples(offset_keys, st.none() | st.builds(CommittedOffset, st.integers(0, 9)))
group_records = st.tuples(
    st.builds(GroupKey, st.sampled_from("gh")), st.none() | st.sampled_from((EMPTY, FULL))
)
records = st.lists(offset_records | group_records)


def table_of(*records: tuple[Key, Value | None]) -> OffsetTable:
    table = OffsetTable()
    for offset, record in enumerate(records):
        table.replay(offset, *record)
    return table


def committed(offset: int, at_ms: int = 0) -> CommittedOffset:
    return CommittedOffset(offset, commit_timestamp_ms=at_ms)


@pytest.mark.parametrize(
    ("group_id", "java_hash"),
    [
        ("", 0),
        ("hello", 99_162_322),
        ("Hello World", 862_545_276),  # Java says -862545276
        ("\U0001f600", 1_772_899),
        ("polygenelubricants", 0),  # its hash is the smallest int, which has no absolute value
    ],
)
def test_a_group_is_where_kafka_looks_for_it(group_id: str, java_hash: int) -> None:
    """GRP-01: the partition is Java's hash of the name, made positive, modulo their number."""
    assert partition_of(group_id, 2**31) == java_hash
    assert partition_of(group_id, 50) == java_hash % 50


@given(records)
def test_the_table_is_what_the_last_record_of_each_key_says(
    history: list[tuple[Key, Value | None]],
) -> None:
    """THE RULE: whatever was replayed, of each key the last record counts, and a tombstone leaves
    nothing of it."""
    table = table_of(*history)
    newest = {key: value for key, value in dict(history).items() if value is not None}
    offsets = {key: value for key, value in newest.items() if isinstance(key, OffsetKey)}
    assert set(table.group_ids) == {key.group_id for key in newest}
    assert set(table.topics) == {key.topic for key in offsets}
    assert sorted(table.of_topics("t")) == sorted(key for key in offsets if key.topic == "t")
    for group_id in "gh":
        mine = {key: value for key, value in offsets.items() if key.group_id == group_id}
        told = table.offsets(group_id)
        assert {OffsetKey(group_id, *name): value for name, value in told.items()} == mine
        assert table.metadata(group_id) == newest.get(GroupKey(group_id))
        assert table.knows(group_id) == (group_id in table.group_ids)
        assert set(table.of_group(group_id)) == {key for key in newest if key.group_id == group_id}
    assert table.statistics() == (len(table.group_ids), len(offsets))


def test_an_offset_is_pending_until_its_own_record_is_replayed() -> None:
    """GRP-02: of two commits under way the second one's record ends it, not the first one's."""
    key = OffsetKey("g", "t", 0)
    table = OffsetTable()
    table.add_pending(key, 5)
    table.add_pending(key, 6)
    table.replay(5, key, committed(1))
    assert table.is_pending(key)
    assert table.offsets("g")[TopicPartition("t", 0)].offset == 1
    table.replay(6, key, committed(2))
    assert not table.is_pending(key)
    table.add_pending(key, 7)
    table.forget_pending()
    assert not table.is_pending(key)


OFFSET = OffsetKey("g", "t", 0)
LATER = OffsetKey("g", "t", 1)
GROUP = GroupKey("g")


@pytest.mark.parametrize(
    ("history", "oldest_ms", "gone"),
    [
        pytest.param([(OFFSET, committed(1, 50))], 50, [], id="not yet"),
        pytest.param([(OFFSET, committed(1, 50))], 51, [OFFSET], id="stand-alone"),
        pytest.param(
            [(OFFSET, committed(1, 50)), (LATER, committed(1, 60))], 60, [OFFSET], id="one of two"
        ),
        pytest.param([(OFFSET, committed(1, 50)), (GROUP, FULL)], 999, [], id="has members"),
        pytest.param([(OFFSET, committed(1, 50)), (GROUP, EMPTY)], 100, [], id="just empty"),
        pytest.param([(OFFSET, committed(1, 50)), (GROUP, EMPTY)], 101, [OFFSET, GROUP], id="all"),
        pytest.param(
            [(OFFSET, committed(1, 50)), (LATER, committed(1, 150)), (GROUP, EMPTY)],
            101,
            [OFFSET],
            id="set since it is empty",
        ),
        pytest.param([(GROUP, EMPTY)], 101, [GROUP], id="nothing committed"),
    ],
)
def test_what_expires(
    history: list[tuple[Key, Value | None]], oldest_ms: int, gone: list[Key]
) -> None:
    """GRP-15: offsets of an empty group go when both the group became empty and they were committed
    too long ago, those of a stand-alone consumer by their commit, and the group with the last."""
    assert table_of(*history).expired(["g"], oldest_ms) == gone


def test_what_is_under_way_does_not_expire() -> None:
    """GRP-15: an entry with a pending commit stays, and its group with it."""
    table = table_of((OFFSET, committed(1, 50)), (LATER, committed(1, 50)), (GROUP, EMPTY))
    table.add_pending(OFFSET, 9)
    assert table.expired(["g"], 101) == [LATER]
    table = table_of((GROUP, EMPTY))
    table.add_pending(GROUP, 9)
    assert table.expired(["g"], 101) == []


def test_what_is_under_way_goes_with_its_group_and_topic() -> None:
    """A commit whose record lies before the tombstones would else outlive what it belongs to."""
    table = table_of((LATER, committed(1)), (GROUP, EMPTY))
    table.add_pending(OFFSET, 9)
    table.add_pending(OffsetKey("h", "u", 0), 10)
    assert table.of_group("g") == [GROUP, LATER, OFFSET]
    assert table.of_topics(("t",)) == [OFFSET, LATER]
    table.add_pending(GroupKey("i"), 11)
    assert table.of_group("h") == table.of_topics(("u",)) == [OffsetKey("h", "u", 0)]
    assert table.of_group("i") == [GroupKey("i")]


@pytest.mark.parametrize("seed", range(3))
def test_the_memory_is_counted(seed: int) -> None:
    """However offsets and groups come, change and go; `growth` says it before. Nothing is left of
    what went."""
    chance = random.Random(seed)
    table = OffsetTable()
    for offset in range(500):
        group_id = chance.choice("gh")
        if chance.random() < 0.3:
            members = (MEMBER,) * chance.randint(0, 2)
            table.replay(offset, GroupKey(group_id), replace(EMPTY, members=members))
        elif chance.random() < 0.4:
            table.replay(offset, chance.choice((GroupKey(group_id), OFFSET, LATER)), None)
        else:
            key = OffsetKey(group_id, "t", chance.randint(0, 3))
            value = CommittedOffset(offset, metadata="m" * chance.randint(0, 9))
            before, growth = table.held_bytes, table.growth(key, value)
            is_first = not table.offsets(group_id)
            table.replay(offset, key, value)
            assert table.held_bytes - before == growth or is_first, seed
    for group_id in list(table.group_ids):
        for key in table.of_group(group_id):
            assert table.held_bytes > 0, seed
            table.add_pending(key, 1000)
            table.replay(1000, key, None)
    assert table.held_bytes == 0, seed


@pytest.mark.parametrize("count", [1, 255, 256, 257, 1000])
def test_a_long_name_has_the_hash_that_java_computes(count: int) -> None:
    """Character by character, as Java does."""
    name = "".join(random.Random(count).choices("ab\xe4\u20ac\U0001f600", k=count))
    data = name.encode("utf-16-be")
    number = 0
    for high, low in zip(data[::2], data[1::2], strict=True):
        number = (31 * number + 256 * high + low) % 2**32
    number -= 2**32 if number >= 2**31 else 0
    assert partition_of(name, 1009) == abs(number) % 1009

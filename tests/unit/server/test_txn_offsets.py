"""TXN_OFFSET_COMMIT: a group's offsets that count when the transaction commits."""

from typing import Any

import pytest
import trio
import trio.testing

from minibroker.broker.groups.offsets import OffsetTable
from minibroker.broker.groups.records import CommittedOffset, OffsetKey
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.turns import AT_ONCE
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.group_offsets import PartitionCommit
from minibroker.protocol.messages.transactions import (
    TransactionMarker,
    TransactionPartitions,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)
from minibroker.protocol.types import TopicPartition
from tests.unit.groups.keeping import OFFSETS, Keeper, keeping, turn

KEY = OffsetKey("g", "t", 0)


def request_of(*offsets: int, metadata: str = "", **more: Any) -> TxnOffsetCommitRequest:
    partitions = tuple(
        [PartitionCommit("t", number, at, -1, metadata) for number, at in enumerate(offsets)]
    )
    fields = {"producer_id": 7, "producer_epoch": 0, **more}
    return TxnOffsetCommitRequest("mine", "g", partitions=partitions, **fields)


async def commit(keeper: Keeper, *offsets: int, error: int = 0, **more: Any) -> list[int]:
    """Commit offsets of t in a transaction; the errors. A first commit is verified."""
    outcome = keeper.ask(request_of(*offsets, **more))
    for asked, version in keeper.verified_appends.take_questions():
        now = trio.current_time()
        keeper.verified_appends.answer(asked, version, {OFFSETS: error}, now)
    response = await keeper.wait(outcome) if isinstance(outcome, Parked) else outcome
    return [each.error for each in response.partitions]


async def end(keeper: Keeper, *, commit: bool, producer_id: int = 7) -> None:
    marker = TransactionMarker(producer_id, 0, commit, 1, (OFFSETS,))
    response = await keeper.answer(WriteTxnMarkersRequest((marker,)))
    assert response.markers[0].partitions[0].error == 0
    await turn()


@pytest.mark.parametrize("is_commit", [True, False])
async def test_offsets_count_when_the_transaction_commits(
    autojump_clock: trio.testing.MockClock, is_commit: bool
) -> None:
    """Until the marker a reader of stable offsets is told to wait, others the offset before."""
    keeper = Keeper()
    async with keeping(keeper):
        assert await keeper.commit(3) == 0
        assert await commit(keeper, 5) == [0]
        assert keeper.fetch().offset == 3
        assert keeper.fetch(require_stable=True).error == ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert await commit(keeper, 6) == [0], "the second one is not verified again"
        await end(keeper, commit=is_commit)
        assert keeper.fetch(require_stable=True).offset == (6 if is_commit else 3)


async def test_a_new_coordinator_replays_open_transactions(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It finds their offsets, and the markers, in the log."""
    keeper = Keeper()
    async with keeping(keeper):
        await commit(keeper, 8, producer_id=9)
        await commit(keeper, 5)
        await end(keeper, commit=True, producer_id=9)
        shard = keeper.shard
        shard.stop_serving(trio.current_time())
        shard.table = OffsetTable()
        shard.replayed_end = 0
        await trio.sleep(3)
        assert keeper.fetch().offset == 8
        assert keeper.fetch(require_stable=True).error == ErrorCode.UNSTABLE_OFFSET_COMMIT
        await end(keeper, commit=True)
        assert keeper.fetch(require_stable=True).offset == 5


async def test_the_coordinator_of_the_transaction_is_asked(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """About the group's partition; what it does not know is refused."""
    keeper = Keeper()
    async with keeping(keeper):
        outcome = keeper.ask(request_of(5))
        assert isinstance(outcome, Parked)
        [(asked, version)] = keeper.verified_appends.take_questions()
        assert asked == TransactionPartitions("mine", 7, 0, (OFFSETS,), is_verify_only=True)
        errors = {OFFSETS: ErrorCode.TRANSACTION_ABORTABLE}
        keeper.verified_appends.answer(asked, version, errors, 0.0)
        answer = await keeper.wait(outcome)
        assert answer.partitions[0].error == ErrorCode.INVALID_TXN_STATE
        temporary = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await commit(keeper, 5, error=ErrorCode.NOT_COORDINATOR) == [temporary]
        assert keeper.fetch(require_stable=True).offset == -1


async def test_a_fenced_producer_commits_no_offsets(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its epoch is an old one for the group's partition."""
    keeper = Keeper()
    async with keeping(keeper):
        await commit(keeper, 5, producer_epoch=3)
        old = await commit(keeper, 6, producer_epoch=2)
        assert old == [ErrorCode.INVALID_PRODUCER_EPOCH]


async def test_members_are_checked(autojump_clock: trio.testing.MockClock) -> None:
    """KIP-447: a zombie's generation is refused; a producer that names no member is not checked."""
    keeper = Keeper()
    async with keeping(keeper):
        joined = await keeper.lead_group()
        member = {"member_id": joined.member_id, "generation": joined.generation}
        assert await commit(keeper, 5, **member) == [0]
        old = {**member, "generation": joined.generation - 1}
        assert await commit(keeper, 6, **old) == [ErrorCode.ILLEGAL_GENERATION]
        assert await commit(keeper, 6, member_id="other", generation=1) == [
            ErrorCode.UNKNOWN_MEMBER_ID
        ]
        assert await commit(keeper, 6) == [0]


async def test_each_refused_partition_has_its_own_error(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The others are committed."""
    keeper = Keeper()
    async with keeping(keeper):
        offsets = (1, 2, 3, 4)  # t has three partitions
        assert await commit(keeper, *offsets) == [0, 0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        await end(keeper, commit=True)
        assert keeper.fetch().offset == 1


def test_a_later_commit_outside_of_a_transaction_holds() -> None:
    """Whichever of them ends last: the order is that of the log. So does a tombstone."""
    table = OffsetTable()
    table.replay_in_transaction(7, 0, KEY, CommittedOffset(5))
    table.replay(1, KEY, CommittedOffset(9))
    assert not table.is_pending(KEY)
    table.end_transaction(7, is_commit=True)
    assert table.offsets("g")[TopicPartition("t", 0)].offset == 9
    table.replay_in_transaction(7, 2, KEY, CommittedOffset(11))
    table.replay(3, KEY, None)
    table.end_transaction(7, is_commit=True)
    assert table.offsets("g") == {}
    assert table.held_bytes == 0


def test_a_key_is_unstable_while_any_transaction_has_it() -> None:
    """An abort of one leaves it with the other."""
    table = OffsetTable()
    for producer_id in (7, 8):
        table.replay_in_transaction(producer_id, producer_id, KEY, CommittedOffset(producer_id))
    table.end_transaction(7, is_commit=False)
    assert table.is_pending(KEY)
    table.end_transaction(8, is_commit=True)
    assert not table.is_pending(KEY)
    assert table.offsets("g")[TopicPartition("t", 0)].offset == 8


# -- bounds


def test_a_transaction_with_many_offsets_ends_in_parts() -> None:
    """A part is a turn. What is not applied yet is unstable."""
    table = OffsetTable()
    keys = [OffsetKey("g", "t", number) for number in range(2 * AT_ONCE)]
    for number, key in enumerate(keys):
        table.replay_in_transaction(7, number, key, CommittedOffset(number))
    assert not table.end_transaction(7, is_commit=True)
    assert len(table.offsets("g")) == AT_ONCE == sum(map(table.is_pending, keys))
    assert table.end_transaction(7, is_commit=True)
    assert len(table.offsets("g")) == 2 * AT_ONCE
    assert not any(map(table.is_pending, keys))


async def test_a_marker_is_replayed_in_parts(autojump_clock: trio.testing.MockClock) -> None:
    """Nothing behind it is replayed before all of it."""
    keeper = Keeper()
    async with keeping(keeper):
        assert await commit(keeper, 5) == [0]
        shard = keeper.shard
        for number in range(AT_ONCE):
            shard.table.replay_in_transaction(
                7, 100 + number, OffsetKey("g", "u", number), CommittedOffset(1)
            )
        end = shard.replayed_end
        marker = TransactionMarker(7, 0, True, 1, (OFFSETS,))
        keeper.ask(WriteTxnMarkersRequest((marker,)))
        assert shard.catch_up(trio.current_time())
        assert shard.replayed_end == end
        assert not shard.catch_up(trio.current_time())
        assert shard.replayed_end == end + 1
        assert len(shard.table.offsets("g")) == AT_ONCE + 1


def test_what_a_commit_replaces_is_found_at_once() -> None:
    """However many transactions are open."""
    table = OffsetTable()
    for producer_id in range(3_000):
        key = KEY if producer_id == 7 else OffsetKey("g", "u", producer_id)
        table.replay_in_transaction(producer_id, producer_id, key, CommittedOffset(1))
    table._transactions = Untold(table._transactions)
    table.replay(3_000, KEY, CommittedOffset(9))
    assert not table.is_pending(KEY)


class Untold(dict[Any, Any]):
    """A table that no one may go through."""

    def values(self) -> Any:
        raise AssertionError("all transactions are looked at")


def test_the_memory_of_open_transactions_is_counted() -> None:
    """With their texts, for each transaction that has a key; nothing is left after their ends."""
    table = OffsetTable()
    text = "m" * 4_096
    for producer_id in range(10):
        for at in (1, 2):
            value = CommittedOffset(at, -1, text)
            table.replay_in_transaction(producer_id, 2 * producer_id + at, KEY, value)
    assert 10 * len(text) < table.held_bytes < 20 * len(text)
    for producer_id in range(10):
        assert table.end_transaction(producer_id, is_commit=producer_id == 9)
    assert len(text) < table.held_bytes < 2 * len(text)
    table.replay(50, KEY, None)
    assert table.held_bytes == 0


async def test_offsets_of_open_transactions_take_bounded_memory(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """One transaction may have an offset that is there already; more count as new."""
    settings = {"group_coordinator_max_bytes": str(1024 * 1024)}
    keeper = Keeper(**settings)
    async with keeping(keeper):
        metadata = "m" * 4_000
        errors = [
            (await commit(keeper, 5, producer_id=number, metadata=metadata))[0]
            for number in range(300)
        ]
        assert {*errors} == {0, ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert errors == sorted(errors)
        assert keeper.groups.held_bytes < 1024 * 1024

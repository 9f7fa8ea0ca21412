"""Requests about transactions with numbers that no record can hold: our own wire carries integers
of 64 bits."""

from dataclasses import replace
from typing import Any

import pytest
import trio.testing

from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    TransactionMarker,
    WriteTxnMarkersRequest,
)
from tests.unit.groups.keeping import OFFSETS, Keeper, keeping
from tests.unit.server.test_txn_offsets import commit, request_of

FAR = 2**63 - 1


@pytest.mark.parametrize(
    "field",
    [
        {"producer_id": -1},
        {"producer_id": -FAR},
        {"producer_epoch": 2**15},
        {"producer_epoch": -1},
        {"producer_epoch": FAR},
        {"coordinator_epoch": 2**31},
        {"coordinator_epoch": -FAR},
    ],
)
async def test_a_marker_that_no_record_can_hold_is_refused(
    autojump_clock: trio.testing.MockClock, field: dict[str, int]
) -> None:
    """Nothing is appended."""
    keeper = Keeper()
    async with keeping(keeper):
        log_end = keeper.partition(OFFSETS).log.log_end
        fields: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "coordinator_epoch": 0}
        marker = TransactionMarker(partitions=(OFFSETS,), **(fields | field))
        answer = await keeper.answer(WriteTxnMarkersRequest((marker,)))
        assert answer.markers[0].partitions[0].error == ErrorCode.INVALID_REQUEST
        assert keeper.partition(OFFSETS).log.log_end == log_end


async def test_a_marker_of_a_coordinator_that_was_never_elected_is_refused(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It would fence all coordinators. With metadata that is old, the coordinator tries again."""
    keeper = Keeper()
    async with keeping(keeper):
        for coordinator_epoch, error in ((4, 0), (5, ErrorCode.NOT_COORDINATOR)):
            marker = TransactionMarker(7, 0, True, coordinator_epoch, (OFFSETS,))
            answer = await keeper.answer(WriteTxnMarkersRequest((marker,)))
            assert answer.markers[0].partitions[0].error == error


@pytest.mark.parametrize(
    "field",
    [
        {"producer_id": -1},
        {"producer_id": -FAR},
        {"producer_epoch": 2**15},
        {"producer_epoch": -1},
        {"producer_epoch": -FAR},
    ],
)
async def test_a_producer_that_no_record_can_hold_commits_no_offsets(
    autojump_clock: trio.testing.MockClock, field: dict[str, int]
) -> None:
    """The error is that of the field, as in Kafka."""
    wrong_id, wrong_epoch = (
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    )
    keeper = Keeper()
    async with keeping(keeper):
        error = wrong_id if "producer_id" in field else wrong_epoch
        assert await commit(keeper, 5, **field) == [error]


@pytest.mark.parametrize("offset", [-FAR, -1, FAR])
async def test_offsets_of_a_transaction_may_be_any_number(
    autojump_clock: trio.testing.MockClock, offset: int
) -> None:
    """As in an OFFSET_COMMIT."""
    keeper = Keeper()
    async with keeping(keeper):
        assert await commit(keeper, offset) == [0]


@pytest.mark.parametrize("transactional_id", ["", "x" * 32_768])
async def test_offsets_of_an_id_that_no_record_can_hold_are_refused(
    autojump_clock: trio.testing.MockClock, transactional_id: str
) -> None:
    """No coordinator is asked: to find it would take long."""
    keeper = Keeper()
    async with keeping(keeper):
        request = replace(request_of(5), transactional_id=transactional_id)
        answer = await keeper.answer(request)
        assert answer.partitions[0].error == ErrorCode.INVALID_REQUEST
        assert keeper.verified_appends.take_questions() == []


@pytest.mark.parametrize("group_id", ["", "x" * 32_768])
async def test_a_group_that_no_record_can_hold_is_not_added(
    autojump_clock: trio.testing.MockClock, group_id: str
) -> None:
    """Its partition is not looked for."""
    keeper = Keeper()
    async with keeping(keeper):
        answer = await keeper.answer(AddOffsetsToTxnRequest("x", 7, 0, group_id))
        assert answer.error == ErrorCode.INVALID_GROUP_ID

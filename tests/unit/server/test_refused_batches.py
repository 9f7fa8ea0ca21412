"""Which refused batches are logged."""

import logging

import pytest

from minibroker.broker.server.dispatch import dispatch
from minibroker.broker.server.refused_batches import INTERVAL_S, KINDS_MAX, RefusedBatches
from minibroker.protocol.constants import ApiKey, ErrorCode
from minibroker.protocol.messages import RequestEnvelope
from tests.unit.node import Node
from tests.unit.server.producing import request_of

INVALID, LARGE = ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE


def test_a_client_gets_a_line_for_each_error_in_a_while() -> None:
    """The next line counts the batches without one."""
    refused = RefusedBatches()
    first = refused.record("shop", "10.0.0.1:5000", INVALID, "t-0: why", 1.0)
    assert first == "refused a batch of client 'shop' at 10.0.0.1: INVALID_RECORD: t-0: why"
    assert refused.record("shop", "10.0.0.1:5001", INVALID, "t-1: why", 2.0) is None
    assert refused.record("shop", "10.0.0.1:5001", LARGE, "t-1: why", 2.0) is not None
    assert refused.record("bank", "10.0.0.1:5001", INVALID, "t-1: why", 2.0) is not None
    again = refused.record("shop", "10.0.0.1:5000", INVALID, "t-0: why", 1.0 + INTERVAL_S)
    assert again == f"{first} (1 more since the last such line)"


def test_what_is_no_fault_of_a_producer_is_not_logged() -> None:
    """Leaders change, and replicas are away."""
    refused = RefusedBatches()
    for code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS):
        assert refused.record("shop", "10.0.0.1:5000", code, "why", 1.0) is None


def test_clients_that_come_once_take_no_memory() -> None:
    """The one that was logged longest ago is forgotten, and a long name is cut."""
    refused = RefusedBatches()
    for number in range(2 * KINDS_MAX):
        line = refused.record(f"{number}" + "x" * 30_000, "h:1", INVALID, "y" * 30_000, 1.0)
        assert line is not None
        assert len(line) < 600
    assert len(refused._kinds) == KINDS_MAX


def test_a_refused_batch_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """With who sent it and why it was refused; kafkajs shows neither."""
    node = Node()
    node.lead()
    caplog.set_level(logging.WARNING)
    for _ in range(3):
        request = request_of(memoryview(bytearray(70)))
        envelope = RequestEnvelope(ApiKey.PRODUCE, 0, 1, "shop", request)
        dispatch(node.services, envelope, "10.0.0.1:5000", 0.0)
    [line] = [line for line in caplog.messages if "refused a batch" in line]
    assert "client 'shop' at 10.0.0.1" in line
    assert "t-0: " in line

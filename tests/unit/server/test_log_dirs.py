"""DESCRIBE_LOG_DIRS, through its handler."""

from minibroker.broker.server.handlers import log_dirs
from minibroker.broker.turns import without_pause
from minibroker.protocol.messages.log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    LogSize,
)
from minibroker.protocol.types import TopicPartition
from tests.unit.node import T0, Node, batch_of, state_of
from tests.unit.server.fetching import append

WRITTEN_MS = 1_000  # of the batches of `batch_of`
WEEK_MS = 7 * 24 * 60 * 60 * 1000


def described(node: Node, *names: TopicPartition) -> DescribeLogDirsResponse:
    """The answer about these logs, or about all."""
    request = DescribeLogDirsRequest(names or None)
    return without_pause(log_dirs.describe(node.services, request, 0.0))


def test_logs_have_sizes() -> None:
    """Each once, with what retention deletes next. Those that are not here are left out."""
    node = Node()
    other = TopicPartition("u", 0)
    node.lead()
    node.lead(state_of(other))
    batch = batch_of(3)
    size = len(batch)
    append(node, batch)
    told = described(node)
    full = LogSize("t", 0, size, 0, WRITTEN_MS, size, WRITTEN_MS + WEEK_MS)
    assert {*told.logs} == {full, LogSize("u", 0)}
    assert told.directory
    assert described(node, T0, T0, TopicPartition("t", 9)).logs == (full,)
    assert described(node, TopicPartition("none", 0)).logs == ()


def test_the_space_of_the_disk_is_told() -> None:
    """As the machine has it at that moment."""
    node = Node()
    told = described(node)
    facts = node.services.machine()
    assert (told.total_bytes, told.free_bytes) == (facts.disk_total_bytes, facts.disk_free_bytes)

"""DESCRIBE_LOG_DIRS, through its handler."""

from minibroker.broker.log.manager import DirectoryState
from minibroker.broker.machine import MachineFacts
from minibroker.broker.server.handlers import log_dirs
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    LogSize,
    OtherLogDirectory,
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


def test_each_directory_is_told() -> None:
    """With its logs and the space of its disk; one that is offline with the error alone."""
    node = Node()
    node.lead()
    states = [DirectoryState("/first"), DirectoryState("/data"), DirectoryState("/gone", "broken")]
    node.services.log_directories = lambda: states
    node.services.machine = lambda: MachineFacts(
        disk_free_bytes=1, disk_total_bytes=2, other_disks=((3, 4), (-1, -1))
    )
    told = described(node)
    assert (told.logs, told.total_bytes, told.free_bytes) == ((), 2, 1)
    assert told.others == (
        OtherLogDirectory("/data", 0, "", (LogSize("t", 0),), 4, 3),
        OtherLogDirectory("/gone", ErrorCode.KAFKA_STORAGE_ERROR, "broken"),
    )


def test_the_space_of_the_disk_is_told() -> None:
    """As the machine has it at that moment."""
    node = Node()
    told = described(node)
    facts = node.services.machine()
    assert (told.total_bytes, told.free_bytes) == (facts.disk_total_bytes, facts.disk_free_bytes)

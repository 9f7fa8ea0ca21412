"""What flows through a broker does not stay in it."""

import contextlib
import os
from pathlib import Path

import pytest

from minibroker.protocol.constants import ApiKey
from minibroker.protocol.messages.fetch import FetchRequest, PartitionFetch
from minibroker.protocol.messages.metadata import MetadataRequest
from tests.bench.raw import fetch, fill
from tests.support.processes import BrokerProcess, running_broker
from tests.support.wire import Wire, frame_of

MB = 1_000_000
TOPIC = "flow"
STEP_BYTES = 50 * MB
BATCH_BYTES = 16 * 1024


def grown(broker: BrokerProcess, from_bytes: int, to_bytes: int) -> int:
    """How much more memory it holds after that much was produced and fetched."""
    before = 0
    for total in range(STEP_BYTES, to_bytes + 1, STEP_BYTES):
        fill(broker.address, TOPIC, STEP_BYTES, BATCH_BYTES)
        fetch(broker.address, TOPIC, STEP_BYTES)
        if total == from_bytes:
            before = broker.resident_bytes
    return broker.resident_bytes - before


def test_what_flows_through_does_not_stay(data_dir: Path) -> None:
    """A broker's memory grows by under 10 MB while 200 MB flow through it."""
    with running_broker(data_dir) as broker:
        assert grown(broker, 50 * MB, 250 * MB) < 10 * MB


@pytest.mark.soak
def test_gigabytes_that_flow_through_do_not_stay(data_dir: Path) -> None:
    """From the 200th megabyte to the 2,000th a broker's memory grows by under 10 MB."""
    with running_broker(data_dir) as broker:
        assert grown(broker, 200 * MB, 2000 * MB) < 10 * MB


@pytest.mark.parametrize("is_cold", [False, True], ids=["cached", "cold"])
def test_unread_answers_stay_in_their_files(data_dir: Path, is_cold: bool) -> None:
    """Large answers to clients that do not read cost no memory, even where the bytes have to come
    from the disk first; and others are answered meanwhile (NET-08)."""
    size = 32 * MB
    ask = frame_of(
        ApiKey.FETCH, FetchRequest(bytes_max=size, partitions=(PartitionFetch(TOPIC, 0, 0, size),))
    )
    with running_broker(data_dir) as broker, contextlib.ExitStack() as stack:
        fill(broker.address, TOPIC, size)
        if is_cold:
            [segment] = data_dir.rglob("00000000000000000000.log")
            forget_cached(segment)
        before = broker.resident_bytes
        silent = [stack.enter_context(Wire(broker.address)) for _ in range(8)]
        for wire in silent:
            wire.socket.sendall(ask)
        for wire in silent:
            assert wire.socket.recv(1)  # its answer has begun
        with Wire(broker.address) as wire:
            assert wire.call(ApiKey.METADATA, MetadataRequest((TOPIC,))).topics
        assert broker.resident_bytes - before < 20 * MB


def forget_cached(path: Path) -> None:
    """Take a file out of the page cache, where the system lets one."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

"""Batches with a right checksum that no client can decode: skipped, if the consumer is told so, and
found where a group stands in front of one."""

import socket

import pytest

from minibroker.cli.group.unreadable import unreadable_places
from minibroker.client.blocking import Admin
from minibroker.client.errors import CorruptRecords
from minibroker.client.net.blocking_channel import BlockingChannel
from minibroker.protocol.constants import ACKS_ALL, BATCH_HEADER_BYTES, ApiKey
from minibroker.protocol.messages.produce import PartitionProduce, ProduceRequest
from minibroker.protocol.records.batch import read_header, write_header
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.types import TopicPartition
from tests.unit.client.consumer.test_positions import A, batch, fetched, make, offsets


def undecodable(offset: int, count: int) -> bytes:
    """A batch with a right checksum whose records are none."""
    bad = bytearray(batch(offset, count))
    bad[61:] = b"\xff" * (len(bad) - 61)
    write_header(bad, read_header(bad)._replace(producer_id=77, producer_epoch=0, base_sequence=0))
    return bytes(bad)


def test_a_consumer_may_be_told_to_skip_what_cannot_be_decoded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It warns, names the producer as far as the batch does, tells the ledger, and goes on behind
    the batch, also if nothing is there: the next poll may commit that. Damage it does not skip."""
    positions = make(A, skip_undecodable_batches=True)
    jumps: list[object] = []
    positions.on_jump = lambda *jump: jumps.append(jump)
    fetched(positions, A, batch(0, 2), undecodable(2, 3), undecodable(5, 1), batch(6, 2))
    assert offsets(positions) == [0, 1, 6, 7]
    assert jumps == [(A, 5), (A, 6)]
    assert "t-0: offsets 2 to 4 are skipped" in caplog.text
    assert "producer id 77" in caplog.text
    fetched(positions, A, undecodable(8, 2))
    positions.recently_delivered.clear()
    positions.of(A).is_in_progress = False
    assert offsets(positions) == []
    assert positions.position(A) == 10
    assert positions.recently_delivered == [positions.of(A)]
    damaged = bytearray(undecodable(10, 1))
    damaged[-1] ^= 1
    fetched(positions, A, bytes(damaged))
    with pytest.raises(CorruptRecords, match=r"t-0 at offset 10: .*bytes are damaged"):
        positions.take_records(10)


def nonsense_inside() -> bytes:
    """A batch that a broker takes: first and last record are sound, the one between is not."""
    made = encode_batch([(1_000, None, b"value", ())] * 3)
    size = (len(made) - BATCH_HEADER_BYTES) // 3
    key_length_at = BATCH_HEADER_BYTES + size + 4
    made[key_length_at] = 0x7D
    write_header(made, read_header(made))
    return bytes(made)


def test_places_that_nobody_can_read_are_found(address: str) -> None:
    """Before a sound batch, in front of what a producer sent, and behind it, all in one log."""
    name = TopicPartition("poisoned", 0)
    with Admin(address) as admin:
        admin.create_topics(name.topic)
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        channel = BlockingChannel(connection, "test")
        channel.negotiate()
        for sent in (bytes(encode_batch([(1_000, None, b"a", ())])), nonsense_inside(), b""):
            data = sent or bytes(encode_batch([(1_000, None, b"b", ())]))
            part = PartitionProduce(*name, data)
            answer = channel.call(ApiKey.PRODUCE, ProduceRequest(ACKS_ALL, 5_000, (part,)))
            assert answer.partitions[0].error == 0
    found = unreadable_places(address, [(name, offset) for offset in (0, 1, 3, 4)], 20.0)
    assert [*found] == [(name, 1), (name, 3)]
    for reason in found.values():
        assert "a producer sent it like this" in reason
        assert "seek to offset 4" in reason

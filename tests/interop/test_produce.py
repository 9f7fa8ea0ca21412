"""Producers of each client: acks, idempotence, and compression that is kept on the disk."""

import json
from typing import Final

import pytest

from tests.interop.clients import FOREIGN, Client, Record, Settings, make_topic
from tests.interop.features import Feature, shows
from tests.support.processes import BrokerProcess, run_cli

RECORDS: Final = tuple(Record(b"%d " % number * 1000, b"key") for number in range(5))
EACH_FOREIGN: Final = pytest.mark.parametrize("client", FOREIGN, ids=lambda client: client.name)


def values(client: Client, bootstrap: str, topic: str) -> list[bytes | None]:
    """What the topic's one partition holds, as the client reads it."""
    return [one.value for one in client.read(bootstrap, topic, {0: len(RECORDS)})[0]]


@EACH_FOREIGN
@pytest.mark.parametrize("acks", [0, 1, -1])
@shows(Feature.ACKS)
def test_acks(bootstrap: str, topic: str, client: Client, acks: int) -> None:
    """Records come once and in order, whatever acknowledgement the producer asks for."""
    make_topic(bootstrap, topic)
    client.write(bootstrap, topic, 0, RECORDS, Settings(acks))
    assert values(client, bootstrap, topic) == [record.value for record in RECORDS]


@EACH_FOREIGN
@shows(Feature.IDEMPOTENCE)
def test_idempotence(broker: BrokerProcess, topic: str, client: Client) -> None:
    """Each batch on the disk has a producer's number."""
    make_topic(broker.address, topic)
    client.write(broker.address, topic, 0, RECORDS, Settings(is_idempotent=True))
    assert values(client, broker.address, topic) == [record.value for record in RECORDS]
    batches = dumped(broker, topic)
    assert batches
    assert all(batch["producerId"] >= 0 and batch["baseSequence"] >= 0 for batch in batches)


@EACH_FOREIGN
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
@shows(Feature.COMPRESSION)
def test_compression_is_kept(broker: BrokerProcess, topic: str, client: Client, codec: str) -> None:
    """The batches on the disk are compressed as the producer was told, and read back whole. An old
    librdkafka compresses nothing if the announced versions do not please it."""
    make_topic(broker.address, topic)
    client.write(broker.address, topic, 0, RECORDS, Settings(compression=codec))
    assert {batch["compresscodec"] for batch in dumped(broker, topic)} == {codec}
    assert values(client, broker.address, topic) == [record.value for record in RECORDS]


def dumped(broker: BrokerProcess, topic: str) -> list[dict]:
    """The batches of partition 0, as `minibroker log dump` tells them."""
    done = run_cli("log", "dump", "--json", str(broker.data_dir / f"{topic}-0"))
    assert done.returncode == 0, done.stderr
    entries = map(json.loads, done.stdout.splitlines())
    return [entry for entry in entries if "baseSequence" in entry or "producerId" in entry]

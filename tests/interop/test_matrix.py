"""What one client wrote every other reads, byte for byte, on both wires, in all compressions."""

from typing import Final

import pytest

from tests.interop.clients import (
    CLIENTS,
    CODECS,
    KCAT,
    Client,
    Kcat,
    Record,
    Settings,
    make_topic,
)
from tests.interop.features import Feature, shows
from tests.support.processes import BrokerProcess

TOPIC: Final = "matrix"
RECORDS: Final = (
    Record(b"plain " * 500, b"key", (("kind", b"text"), ("empty", b""))),
    Record(bytes(range(256)) * 20, b"\xff\xfe key", (("bytes", b"\x80\xff"),), 1_700_000_000_001),
    Record(None, b"tombstone", (), 1_700_000_000_002),
    Record("größer".encode() * 300, None, (), 1_700_000_000_003),
)


def writers() -> list[Client]:
    """Those that are installed."""
    found = [getattr(each, "values", (each,))[0] for each in CLIENTS]
    return [client for client in found if KCAT or not isinstance(client, Kcat)]


def place_of(writer: int, codec: int) -> int:
    """The partition of a writer and a compression."""
    return writer * len(CODECS) + codec


@pytest.fixture(scope="module")
def written(broker: BrokerProcess) -> str:
    """A topic in which each writer has filled a partition in each compression."""
    found = writers()
    make_topic(broker.address, TOPIC, len(found) * len(CODECS))
    for number, writer in enumerate(found):
        for codec, name in enumerate(CODECS):
            how = Settings(compression=name)
            writer.write(broker.address, TOPIC, place_of(number, codec), RECORDS, how)
    return broker.address


@shows(Feature.BYTES)
@shows(Feature.READ_COMMITTED)
def test_what_one_wrote_every_other_reads(written: str, client: Client) -> None:
    """Values, keys, headers, and the times of records where the writer could say them."""
    found = writers()
    counts = dict.fromkeys(range(len(found) * len(CODECS)), len(RECORDS))
    read = client.read(written, TOPIC, counts)
    for number, writer in enumerate(found):
        for codec, name in enumerate(CODECS):
            got = tuple(read[place_of(number, codec)])
            if not writer.keeps_timestamps:
                got = tuple(
                    one._replace(timestamp_ms=sent.timestamp_ms)
                    for one, sent in zip(got, RECORDS, strict=True)
                )
            assert got == RECORDS, f"{writer.name} wrote it with {name}, {client.name} read it"

"""docs/wire.md says what the code does."""

import re

from minibroker.protocol.constants import PREFACE, ApiKey
from minibroker.protocol.messages import RequestEnvelope
from minibroker.protocol.messages.produce import (
    PartitionProduce,
    PartitionProduced,
    ProduceRequest,
    ProduceResponse,
)
from minibroker.protocol.rpc.codec import encode_request, encode_response
from tests.unit.rpc.wire_tables import BEGIN, END, PAGE, made


def hex_examples() -> list[bytes]:
    """The bytes of each `hex` block, without what stands behind `#`."""
    blocks = re.findall(r"```hex\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [bytes.fromhex(re.sub(r"#.*", "", block)) for block in blocks]


def test_the_tables_are_those_of_the_code():
    """Every api, field, default and error code; `python -m tests.unit.rpc.wire_tables` makes it."""
    text = PAGE.read_text()
    assert text[text.index(BEGIN) + len(BEGIN) : text.index(END)] == made()


def test_the_worked_example_is_what_travels():
    """The bytes on the page are those that this client and this broker send."""
    request = ProduceRequest(-1, 1500, (PartitionProduce("t", 0, b"\xde\xad\xbe\xef"),))
    envelope = RequestEnvelope(ApiKey.PRODUCE, 0, 1, "me", request)
    header, _ = encode_response(1, ProduceResponse((PartitionProduced("t", 0, 0, 41, -1, 0),)))
    assert hex_examples() == [PREFACE + b"".join(encode_request(envelope)), header]

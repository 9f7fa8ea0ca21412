"""The ledger's lines."""

import json
from pathlib import Path

from minibroker.client.delivery import Delivery
from minibroker.client.ledger import Ledger
from minibroker.protocol.records.record import encode_batch


def test_each_record_has_a_line_that_gives_its_bytes_back(tmp_path: Path) -> None:
    """As Kafka's verifiable producer writes it, also for bytes that are no text."""
    data = encode_batch([(5, b"k", b"\xff\x00", ()), (5, None, None, ())])
    path = tmp_path / "ledger"
    with Ledger(path, -1, lambda: 77) as ledger:
        ledger.record(Delivery("t", 3, 10, 2, None, data))
        ledger.record(Delivery("t", 3, -1, 2, TimeoutError("late"), data))
        lines = [json.loads(line) for line in path.read_text().splitlines()]
    names = ["startup_complete", *["producer_send_success"] * 2, *["producer_send_error"] * 2]
    assert [line["name"] for line in lines] == names
    assert [line.get("offset") for line in lines[1:3]] == [10, 11]
    assert lines[1]["value"].encode("utf-8", "surrogateescape") == b"\xff\x00"
    assert lines[2]["key"] is None
    assert (lines[3]["exception"], lines[3]["message"]) == ("TimeoutError", "late")
    assert all(
        (line["topic"], line["partition"], line["acks"]) == ("t", 3, -1) for line in lines[1:]
    )

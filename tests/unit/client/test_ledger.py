"""The ledgers' lines."""

import json
from pathlib import Path

import pytest

from minibroker.client.blocking import Consumer, Producer
from minibroker.client.consumer.completed_fetch import ConsumerRecord
from minibroker.client.groups.offset_commits import CommitAnswer
from minibroker.client.ledger import ConsumerLedger, Ledger
from minibroker.client.options import ProducerOptions
from minibroker.client.producer.delivery import Delivery
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.types import TopicPartition


def test_each_record_has_a_line_that_gives_its_bytes_back(tmp_path: Path) -> None:
    """As Kafka's verifiable producer writes it, also for bytes that are no text."""
    data = encode_batch([(5, b"k", b"\xff\x00", ()), (5, None, None, ())])
    path = tmp_path / "ledger"
    with Ledger(path, ProducerOptions(), lambda: 77) as ledger:
        ledger.record(Delivery("t", 3, 10, 2, None, data))
        ledger.record(Delivery("t", 3, -1, 2, TimeoutError("late"), data))
        lines = [json.loads(line) for line in path.read_text().splitlines()]
    names = ["startup_complete", *["producer_send_success"] * 2, *["producer_send_error"] * 2]
    assert [line["name"] for line in lines] == names
    assert lines[0]["idempotence"] is True
    assert [line.get("offset") for line in lines[1:3]] == [10, 11]
    assert lines[1]["value"].encode("utf-8", "surrogateescape") == b"\xff\x00"
    assert lines[2]["key"] is None
    assert (lines[3]["exception"], lines[3]["message"]) == ("TimeoutError", "late")
    assert all(
        (line["topic"], line["partition"], line["acks"]) == ("t", 3, -1) for line in lines[1:]
    )


def test_a_consumers_ledger_tells_each_record_and_each_poll(tmp_path: Path) -> None:
    """As Kafka's verifiable consumer writes it."""
    path = tmp_path / "ledger"
    records = [
        ConsumerRecord("t", partition, offset, 5, None, b"\xff%d" % offset, ())
        for partition, offset in ((3, 10), (3, 12), (0, 7))
    ]
    with ConsumerLedger(path, lambda: 77) as ledger:
        ledger.record(records)
        lines = [json.loads(line) for line in path.read_text().splitlines()][1:]
    assert [line["name"] for line in lines] == [*["record_data"] * 3, "records_consumed"]
    told = [(line["partition"], line["offset"], line["key"]) for line in lines[:3]]
    assert told == [(3, 10, None), (3, 12, None), (0, 7, None)]
    assert lines[1]["value"].encode("utf-8", "surrogateescape") == b"\xff12"
    names = ("topic", "partition", "count", "minOffset", "maxOffset")
    polled = [tuple(each[name] for name in names) for each in lines[3]["partitions"]]
    assert (lines[3]["count"], polled) == (3, [("t", 3, 2, 10, 12), ("t", 0, 1, 7, 7)])


def test_a_groups_lines_say_who_has_committed_and_jumped(tmp_path: Path) -> None:
    """The group is in each line about it, the member and its generation in its commits, the error
    in those that were refused."""
    path = tmp_path / "ledger"
    name = TopicPartition("t", 3)
    said = [
        CommitAnswer("g", 7, "m", {name: 11}, ErrorCode.NONE),
        CommitAnswer("g", 6, "m", {name: 9}, ErrorCode.ILLEGAL_GENERATION),
        CommitAnswer("g", -1, "", {name: 5}, ErrorCode.NONE),
    ]
    with ConsumerLedger(path, lambda: 77, group="g") as ledger:
        ledger.record([ConsumerRecord("t", 3, 10, 5, None, b"v", ())])
        for each in said:
            ledger.record_commit(each)
        ledger.record_jump(name, 40)
        lines = [json.loads(line) for line in path.read_text().splitlines()][1:]
    assert [line["group"] for line in lines if line["name"] != "records_consumed"] == ["g"] * 5
    committed = {"timestamp": 77, "name": "offsets_committed", "group": "g"}
    place = {"topic": "t", "partition": 3}
    assert lines[2:] == [
        {**committed, "success": True, "offsets": [place | {"offset": 11}]}
        | {"member": "m", "generation": 7},
        {**committed, "success": False, "offsets": [place | {"offset": 9}]}
        | {"member": "m", "generation": 6, "error": "ILLEGAL_GENERATION"},
        {**committed, "success": True, "offsets": [place | {"offset": 5}]},
        {"timestamp": 77, "name": "position_set", "group": "g", **place, "offset": 40},
    ]


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_a_ledger_says_that_only_committed_records_are_shown(
    address: str, tmp_path: Path, level: str
) -> None:
    """audit: others may be shown records of a transaction that was aborted."""
    path = tmp_path / "ledger"
    with Consumer(address, ledger=path, isolation_level=level):
        pass
    first, *_ = path.read_text().splitlines()
    assert json.loads(first).get("isolation") == (level if level == "read_committed" else None)


def test_one_option_of_a_consumer_writes_a_ledger(address: str, tmp_path: Path) -> None:
    """audit: each record that was shown has its line, also one that iteration gave back."""
    path = tmp_path / "ledger"
    with Producer(address) as producer:
        producer.send_many("shown", [b"a", b"b", b"c"], partition=0)
        producer.flush()
    with Consumer(address, ledger=path, auto_offset_reset="earliest") as consumer:
        consumer.assign([("shown", 0)])
        assert next(iter(consumer)).offset == 0
        assert [record.offset for record in consumer.poll(10)] == [1, 2]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    shown = [(line["offset"], line["value"]) for line in lines if line["name"] == "record_data"]
    assert shown == [(0, "a"), (1, "b"), (2, "c"), (1, "b"), (2, "c")]
    names = [line["name"] for line in lines]
    assert names.count("records_consumed") == 2
    assert [line["offset"] for line in lines if line["name"] == "position_set"] == [0]
    assert (names[0], names[-1]) == ("startup_complete", "shutdown_complete")


def test_what_a_crash_has_cut_stays_on_its_line(tmp_path: Path) -> None:
    """The next run begins a line of its own, so that only what was cut is lost."""
    path = tmp_path / "ledger"
    for before in ("", "whole\n", "cut"):
        path.write_text(before)
        with Ledger(path, ProducerOptions(), lambda: 77):
            pass
        lines = path.read_text().splitlines()
        names = [json.loads(line)["name"] for line in lines[-2:]]
        assert names == ["startup_complete", "shutdown_complete"]
        assert lines[:-2] == before.splitlines()

"""Adds up orders and keeps the sum, with the offset, in a file of its own.

    python reader.py BOOTSTRAP TOPIC FILE VERSION LAST CRASH_AT early|late

Its bug depends on VERSION: "same" stores the record's own offset and not the next one, "before"
stores the next offset before it has added the record. "good" stores both in one step. At the order
CRASH_AT it ends without a word, before that step or after it. It prints what it does.
"""

import json
import os
import sys
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

PATIENCE_S = 30


def store(path: Path, state: dict[str, int]) -> None:
    """Replace the file."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(state))
    new.replace(path)


def tell(*what: object) -> None:
    """A line for the test."""
    print(json.dumps(what), flush=True)


def main(
    bootstrap: str, topic: str, file: str, version: str, last: str, crash_at: str, moment: str
) -> None:
    """Read up to the last order, or crash."""
    path = Path(file)
    state = json.loads(path.read_text()) if path.exists() else {"next": 0, "sum": 0}
    options = {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False}
    consumer = Consumer(options)
    consumer.assign([TopicPartition(topic, 0, state["next"])])
    while True:
        message = consumer.poll(PATIENCE_S)
        if message is None:
            sys.exit("nothing came")
        value, offset = (message.value() or b"").decode(), message.offset() or 0
        tell("polled", value, topic, 0, offset)
        if version == "before":
            state["next"] = offset + 1
            store(path, state)
        if (value, moment) == (crash_at, "early"):
            os._exit(9)
        state["sum"] += len(value)
        state["next"] = offset if version == "same" else offset + 1
        store(path, state)
        tell("processed", value)
        if (value, moment) == (crash_at, "late"):
            os._exit(9)
        if value == last:
            os._exit(0)


main(*sys.argv[1:])

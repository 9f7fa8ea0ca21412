"""The ledgers of the clients that have filled a made cluster (`made_cluster.py`)."""

import json
from collections.abc import Sequence
from pathlib import Path

from tests.support.made_cluster import BATCHES, NOW_MS, RECORDS, TOPIC, TOPIC_ID, Commit

END = BATCHES * RECORDS
FORMER_ID = bytes(range(50, 66))  # of a deleted topic that had the same name


def write_ledgers(directory: Path, count: int, commits: Sequence[Commit]) -> list[Path]:
    """All that was sent to a made cluster, as clients were told it; and the ledger of a client of a
    topic that had the name before, with a line that is cut off in the middle."""
    sent: list[dict[str, object]] = []
    former: list[dict[str, object]] = []
    for partition in range(count):
        for offset in range(END):
            number, n = divmod(offset, RECORDS)
            record = {"key": f"{n}", "value": f"{partition} {number} {n}", "offset": offset}
            sent.append(acknowledged(partition, TOPIC_ID) | record)
        former.append(acknowledged(partition, FORMER_ID) | record | {"value": "of the former"})
    for commit in commits:
        place = {"topic": TOPIC, "topicId": TOPIC_ID.hex(), "partition": commit.partition}
        told: dict[str, object] = {"name": "offsets_committed", "group": commit.group}
        sent.append(told | {"success": True, "offsets": [place | {"offset": commit.offset}]})
    paths = [directory / "ledger", directory / "former"]
    for path, lines in zip(paths, (sent, former), strict=True):
        whole = [{"name": "startup_complete"}, *lines, {"name": "shutdown_complete"}]
        path.write_text("".join(json.dumps(line) + "\n" for line in whole))
    begin, cut, *rest = paths[1].read_text().splitlines(keepends=True)
    paths[1].write_text("".join([begin, cut[:-20] + "\n", *rest]))
    return paths


def acknowledged(partition: int, topic_id: bytes) -> dict[str, object]:
    """What a ledger says of each record of a partition."""
    told: dict[str, object] = {"name": "producer_send_success", "acks": -1, "timestamp": NOW_MS}
    return told | {"topic": TOPIC, "topicId": topic_id.hex(), "partition": partition}


def partitions_without_retention(count: int) -> list[int]:
    """The first so many that have lost nothing to retention."""
    return [number for number in range(2 * count) if number % 5][:count]

"""A consumer that commits by itself, after its work, and hears of rebalances.

    python examples/manual_commits.py 127.0.0.1:9092 TOPIC GROUP [COUNT]

It adds up how often each key came, and writes the sums to stdout whenever partitions go to another
member and at the end. A record counts as done once its sum is written, so the commit comes after
that. If the process dies in between, another member counts these records again, rather than never.
With COUNT it ends after so many records.
"""

import sys
from collections import Counter

from minibroker.client import TopicPartition
from minibroker.client.blocking import Consumer


def main(address: str, topic: str, group: str, count: str = "") -> None:
    """Count until interrupted, or until there were so many."""
    sums: Counter[bytes] = Counter()

    def write_and_commit() -> None:
        for key, seen in sorted(sums.items()):
            print(f"{key.decode()} {seen}", flush=True)
        sums.clear()
        consumer.commit()

    def on_assigned(partitions: list[TopicPartition]) -> None:
        print(f"reading {sorted(each.partition for each in partitions)}", file=sys.stderr)

    def on_revoked(partitions: list[TopicPartition]) -> None:
        write_and_commit()  # before another member begins behind what is committed

    def on_lost(partitions: list[TopicPartition]) -> None:
        sums.clear()  # others read these records by now

    consumer = Consumer(
        address, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
    )
    left = int(count) if count else -1
    with consumer:
        consumer.subscribe(topic, on_assigned=on_assigned, on_revoked=on_revoked, on_lost=on_lost)
        while left:
            for record in consumer.poll(1.0):
                sums[record.key or b""] += 1
                left -= 1
        write_and_commit()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A batch job: sends the lines of files, and ends with an error if one was not stored.

    python examples/batch_job.py 127.0.0.1:9092 TOPIC FILE...

The blocking producer fits: the job has nothing else to do while it waits. `send` waits where the
broker is slower than the disk. The end of the block delivers the rest, or raises `DeliveryFailed`.
"""

import sys
from pathlib import Path

from minibroker.client import ClientError
from minibroker.client.blocking import Producer


def main(address: str, topic: str, *paths: str) -> int:
    """Send all lines; returns the exit code."""
    try:
        with Producer(address, linger_ms=20, compression_type="lz4") as producer:
            for path in paths:
                with Path(path).open("rb") as lines:
                    for line in lines:
                        producer.send(topic, line.rstrip(b"\n"), key=path.encode())
    except ClientError as error:
        print(f"not all lines are stored: {error}", file=sys.stderr)
        return 1
    print(f"{producer.statistics().delivered} lines are stored")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

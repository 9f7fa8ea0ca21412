"""Whether the next records of a group can be read, for `group describe` and `doctor`.

A batch that no client can decode, or that is damaged, stops every member of every group in front of
it. Its offset alone looks like any other lag. So the batch at each committed offset below the end
is fetched and decoded, by a consumer without a group.
"""

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

from minibroker.protocol.types import TopicPartition

TAKES_S_MAX: Final = 5.0
SILENCE_S: Final = 1.0  # far longer than a broker takes for a fetch of what is there
PLACES_MAX: Final = 1_000

Place = tuple[TopicPartition, int]  # a partition, and an offset of it


def unreadable_places(
    bootstrap: str, places: Iterable[Place], timeout_s: float
) -> dict[Place, str]:
    """Return which of these places cannot be read, and why. At most 1,000 are looked at, for a few
    seconds: one that was not reached counts as readable."""
    left = sorted(set(places))[:PLACES_MAX]
    deadline = time.monotonic() + min(timeout_s, TAKES_S_MAX)
    found: dict[Place, str] = {}
    while left and time.monotonic() < deadline:
        # A consumer has one position in each partition, and groups may have several.
        now = dict(reversed(left))
        left = [place for place in left if now[place[0]] != place[1]]
        reasons = _unreadable(bootstrap, now, deadline)
        found |= {(name, now[name]): reason for name, reason in reasons.items()}
    return found


def _unreadable(
    bootstrap: str, offsets: Mapping[TopicPartition, int], deadline: float
) -> dict[TopicPartition, str]:
    from minibroker.client.blocking import Consumer
    from minibroker.client.errors import ClientError, CorruptRecords, PositionError

    left, found = dict(offsets), dict[TopicPartition, str]()
    reader = Consumer(bootstrap, auto_offset_reset="none", max_partition_fetch_bytes=1)
    with suppress(ClientError), reader as consumer:
        consumer.assign([*left])
        for name, offset in left.items():
            consumer.seek(name, offset)
        is_silent = False
        while left and not is_silent and (left_s := deadline - time.monotonic()) > 0:
            try:
                records = [*consumer.poll(min(left_s, SILENCE_S))]
                is_silent = not records  # what is left has no leader any more
                for record in records:
                    left.pop(TopicPartition(record.topic, record.partition), None)
            except PositionError as error:
                if isinstance(error, CorruptRecords):
                    found[error.topic_partition] = str(error)
                left.pop(error.topic_partition, None)
            consumer.assign([*left])
    return found

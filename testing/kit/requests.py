"""The requests that the brokers of a cluster have received."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Request(NamedTuple):
    """A request that a broker has received.

    `at_s` counts from the start of the cluster, in seconds. `partitions` are pairs of topic and
    number, with -1 for a whole topic. `errors` are the names of the errors in the response, or None
    while there is no response. `has_met_fault` says whether a fault of the test applied to it.
    `group_id` and `member_id` are those that the request names. `offsets` are in the order of the
    partitions: what a commit commits, or where a PRODUCE has appended (-1: it has not); other
    requests have none.
    """

    at_s: float
    broker: int
    client_id: str | None
    api: str
    version: int
    partitions: tuple[tuple[str, int], ...]
    errors: tuple[str, ...] | None
    has_met_fault: bool
    group_id: str = ""
    member_id: str = ""
    offsets: tuple[int, ...] = ()


def requests_of(broker: int, answer: Sequence[Mapping[str, Any]], began_at: float) -> list[Request]:
    """Return the requests in a broker's answer to the order `requests`. `began_at` is the wall
    clock time at which the cluster started, in seconds."""
    return [
        Request(
            each["at_s"] - began_at,
            broker,
            each["client_id"],
            each["api"],
            each["version"],
            tuple((topic, partition) for topic, partition in each["partitions"]),
            None if each["errors"] is None else tuple(each["errors"]),
            each["rule"] > 0,
            each["group_id"],
            each["member_id"],
            tuple(each["offsets"]),
        )
        for each in answer
    ]

"""What clients have asked of the brokers of a cluster."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Request(NamedTuple):
    """A request that a broker got. `at_s` counts from the start of the cluster; `partitions` are
    pairs of topic and number, with -1 for a topic as a whole. `errors` are the names of those in
    the answer, and None where there was no answer yet. `has_met_fault` says whether a fault of the
    test concerned it."""

    at_s: float
    broker: int
    client_id: str | None
    api: str
    version: int
    partitions: tuple[tuple[str, int], ...]
    errors: tuple[str, ...] | None
    has_met_fault: bool


def requests_of(
    broker: int, answer: Mapping[str, Any], client_id: str | None, began_at: float
) -> list[Request]:
    """The requests in a broker's answer: of this client, or of all clients but brokers."""
    found = []
    for each in answer["requests"]:
        is_wanted = each["is_of_client"] if client_id is None else each["client_id"] == client_id
        if is_wanted:
            partitions = tuple((topic, partition) for topic, partition in each["partitions"])
            errors = None if each["errors"] is None else tuple(each["errors"])
            at_s = each["at_s"] - began_at
            head = each["client_id"], each["api"], each["version"]
            found.append(Request(at_s, broker, *head, partitions, errors, each["rule"] > 0))
    return found

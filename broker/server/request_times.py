"""The durations of requests, and the counts of those parked now, for each kind of request.

A kind is an api under Kafka's name for it (`Produce`, `ListOffsets`), but fetches of
consumers and of followers are two kinds, because an operator reads their times differently. A
request's time runs from the arrival of its last byte until its answer is handed to the operating
system. The time of a long poll includes its wait, so a long one is normal.
"""

from typing import Final, NamedTuple

from minibroker.broker.histogram import REQUEST_BOUNDS_S, Distribution, Histogram
from minibroker.protocol.constants import ApiKey
from minibroker.protocol.messages import RequestEnvelope

FETCH_CONSUMER: Final = "FetchConsumer"
FETCH_FOLLOWER: Final = "FetchFollower"


class KindStatistics(NamedTuple):
    """One kind of request: its times since the start, and how many are parked now."""

    times: Distribution
    parked: int


class RequestKind:
    """One kind of request. `parked` is how many wait for something in the purgatory."""

    __slots__ = ("api_key", "name", "parked", "times")

    def __init__(self, api_key: ApiKey, name: str) -> None:
        self.api_key = api_key
        self.name = name
        self.times = Histogram(REQUEST_BOUNDS_S)
        self.parked = 0


class RequestTimes:
    """The kinds of requests; one for each broker. `versions` are requests for ApiVersions."""

    def __init__(self) -> None:
        self._kinds = {int(key): RequestKind(key, name_of(key)) for key in ApiKey}
        self._follower = RequestKind(ApiKey.FETCH, FETCH_FOLLOWER)
        self.versions = self._kinds[ApiKey.API_VERSIONS]

    def kind_of(self, envelope: RequestEnvelope) -> RequestKind:
        """Return the kind of a request."""
        if envelope.api_key == ApiKey.FETCH and envelope.message.replica_id >= 0:
            return self._follower
        return self._kinds[envelope.api_key]

    def statistics(self) -> dict[str, KindStatistics]:
        """Return the statistics of all kinds by name, with those never received."""
        kinds = (*self._kinds.values(), self._follower)
        return {kind.name: KindStatistics(kind.times.statistics(), kind.parked) for kind in kinds}


def name_of(api_key: ApiKey) -> str:
    """Return the name of an api in Kafka's metrics."""
    if api_key == ApiKey.FETCH:
        return FETCH_CONSUMER
    return api_key.name.title().replace("_", "")

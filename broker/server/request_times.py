"""How long requests take, and how many of them wait now, for each kind of request.

A kind is an api under Kafka's name for it (`Produce`, `ListOffsets`), but a fetch is either a
consumer's or a follower's, since the two mean different things to whoever looks at the figures. A
request's time is from the arrival of its last byte until its answer was handed to the system; one
with a long poll takes as long as it may wait, and nothing is wrong with it.
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

    __slots__ = ("name", "parked", "times")

    def __init__(self, name: str) -> None:
        self.name = name
        self.times = Histogram(REQUEST_BOUNDS_S)
        self.parked = 0


class RequestTimes:
    """The kinds of requests; one for each broker. `versions` are requests for ApiVersions."""

    def __init__(self) -> None:
        self._kinds = {int(key): RequestKind(name_of(key)) for key in ApiKey}
        self._follower = RequestKind(FETCH_FOLLOWER)
        self.versions = self._kinds[ApiKey.API_VERSIONS]

    def kind_of(self, envelope: RequestEnvelope) -> RequestKind:
        """What a request counts as."""
        if envelope.api_key == ApiKey.FETCH and envelope.message.replica_id >= 0:
            return self._follower
        return self._kinds[envelope.api_key]

    def statistics(self) -> dict[str, KindStatistics]:
        """By name, kinds that never came too."""
        kinds = (*self._kinds.values(), self._follower)
        return {kind.name: KindStatistics(kind.times.statistics(), kind.parked) for kind in kinds}


def name_of(api_key: ApiKey) -> str:
    """An api as Kafka's metrics name it."""
    if api_key == ApiKey.FETCH:
        return FETCH_CONSUMER
    return api_key.name.title().replace("_", "")

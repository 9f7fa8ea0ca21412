"""Which followers send this broker no FETCH: those that it need not wait for until they lag.

A leader's acks=all waits for each in-sync follower. One that lacks records may be slow, and has
`replica.lag.time.max.ms` to catch up. One that also sends no FETCH at all is not slow: it is dead,
or the wire between the two is cut. So after `timeout_s`, which is shorter, the leader asks for its
removal from the in-sync set, if enough replicas stay (`roles.Leader.shrink_isr`).

Silence is that of a broker, not of one of its partitions: any FETCH shows that the wire carries
requests to here. A follower that has nothing to ask for still sends one several times within the
time-out (`FetchPlan.keepalive`). A FETCH counts when it arrives, so a follower has none wait at the
leader for long.

A broker is known here from the moment when it is an in-sync follower of a partition that is led
here, or fetches. It is forgotten when a review finds that it is in no in-sync set any more.

Time in which this broker did not run counts for nobody's silence (`tick`): requests that came
meanwhile are not read yet.
"""

import math
from collections.abc import Container


class FollowerSilence:
    """See the head of this module. Times in seconds; `tick` is called every `interval_s`."""

    __slots__ = ("_heard_at", "_interval_s", "_ticked_at", "timeout_s")

    def __init__(self, timeout_s: float, interval_s: float = math.inf) -> None:
        self.timeout_s = timeout_s
        self._interval_s = interval_s
        self._ticked_at = math.inf
        self._heard_at: dict[int, float] = {}

    def expect(self, node_id: int, now: float) -> None:
        """This broker is an in-sync follower from now on, if it was not before."""
        self._heard_at.setdefault(node_id, now)

    def record_fetch(self, node_id: int, now: float) -> None:
        """A FETCH of this broker arrived."""
        self._heard_at[node_id] = now

    def tick(self, now: float) -> None:
        """What is more than an interval since the last call was lost here, not at the followers."""
        lost_s = now - self._ticked_at - self._interval_s
        self._ticked_at = now
        if lost_s > 0:
            for node_id, heard_at in self._heard_at.items():
                self._heard_at[node_id] = min(now, heard_at + lost_s)

    def is_silent(self, node_id: int, since: float, now: float) -> bool:
        """Whether no FETCH of this broker arrived for the time-out, which begins at `since` at the
        earliest."""
        heard_at = self._heard_at.get(node_id, -math.inf)
        return now - max(heard_at, since) > self.timeout_s

    def has_silent(self, now: float) -> bool:
        """Whether any broker that is known here is silent."""
        return any(now - heard_at > self.timeout_s for heard_at in self._heard_at.values())

    def keep(self, followers: Container[int], since: float) -> None:
        """Forget all brokers but these, and those that were heard since."""
        self._heard_at = {
            node_id: heard_at
            for node_id, heard_at in self._heard_at.items()
            if node_id in followers or heard_at >= since
        }

"""Detection of silent followers: those that send this broker no FETCH at all.

A leader's acks=all waits for each in-sync follower. One that lacks records may be slow, and has
`replica.lag.time.max.ms` to catch up. One that also sends no FETCH at all is not slow: it is dead,
or the network between the two is cut. So after `timeout_s`, which is shorter, the leader proposes
its removal from the in-sync set, if enough replicas stay (`roles.Leader.shrink_isr`).

Silence is measured per broker, not per partition: any FETCH shows that the network carries requests
to this broker. A follower with nothing to ask for still sends a FETCH several times within the
time-out (`FetchPlan.keepalive`). A FETCH counts when it arrives, so a follower lets none wait at
the leader for long.

A broker is known from the moment when it fetches or is an in-sync follower of a partition led here.
It is forgotten when a review finds it in no in-sync set.

Time in which this broker did not run does not count as silence (`tick`): requests that arrived in
that time have not been read yet.
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
        """Start to watch a broker that became an in-sync follower; no effect if it is known."""
        self._heard_at.setdefault(node_id, now)

    def record_arrival(self, node_id: int, now: float) -> None:
        """Record that a FETCH of this broker arrived."""
        self._heard_at[node_id] = now

    def tick(self, now: float) -> None:
        """Excuse the time since the last call beyond one interval: this broker did not run then."""
        lost_s = now - self._ticked_at - self._interval_s
        self._ticked_at = now
        if lost_s > 0:
            for node_id, heard_at in self._heard_at.items():
                self._heard_at[node_id] = min(now, heard_at + lost_s)

    def is_silent(self, node_id: int, since: float, now: float) -> bool:
        """Whether no FETCH of this broker arrived within the time-out, which starts no earlier than
        `since`."""
        heard_at = self._heard_at.get(node_id, -math.inf)
        return now - max(heard_at, since) > self.timeout_s

    def has_silent(self, now: float) -> bool:
        """Whether any known broker is silent."""
        return any(now - heard_at > self.timeout_s for heard_at in self._heard_at.values())

    def keep(self, followers: Container[int], since: float) -> None:
        """Forget all brokers except these and those that sent a FETCH since `since`."""
        self._heard_at = {
            node_id: heard_at
            for node_id, heard_at in self._heard_at.items()
            if node_id in followers or heard_at >= since
        }

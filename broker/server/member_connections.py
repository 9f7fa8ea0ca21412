"""On which connections members of groups have lately joined.

A member asks for its offsets right after it has its assignment. If its coordinator was replaced in
between, the answer NOT_COORDINATOR is right for most clients; librdkafka does not ask again after
it, and the member reads nothing for ever. Its next heartbeat, which goes to the same broker, leads
it to the new coordinator. So a member is told to ask again until then; any other client, which
sends no heartbeats, is told to look for the coordinator.
"""

from typing import Final

HEARD_S: Final = 30.0  # above the interval of heartbeats of any client
GROUPS_MAX: Final = 100  # of one connection


class MemberConnections:
    """See the head of this file. A peer is the host:port of a connection; times are trio's."""

    def __init__(self) -> None:
        self._joined: dict[str, dict[str, float]] = {}  # the group that joined last is last

    def record(self, peer: str, group_id: str, now: float) -> None:
        """Record that a member of a group joins, or fetches its assignment."""
        groups = self._joined.setdefault(peer, {})
        groups.pop(group_id, None)
        groups[group_id] = now
        if len(groups) > GROUPS_MAX:
            del groups[next(iter(groups))]

    def has_member(self, peer: str, group_id: str, now: float) -> bool:
        """Whether a member of a group has joined there in the last `HEARD_S`."""
        joined_at = self._joined.get(peer, {}).get(group_id)
        return joined_at is not None and now - joined_at < HEARD_S

    def forget(self, peer: str) -> None:
        """Forget a connection that has ended."""
        self._joined.pop(peer, None)

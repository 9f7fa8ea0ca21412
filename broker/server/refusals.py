"""Which refusals of strangers are logged: some of each host, the others are counted.

A scan of ports, or a client with TLS that tries again and again, would otherwise write a line for
each of its connections.
"""

from typing import Final

LINES_MAX: Final = 5  # of one host, in an interval
INTERVAL_S: Final = 60.0
HOSTS_MAX: Final = 1_000


class _Host:
    """What was refused to one host since `began_at`, in seconds of the loop's clock."""

    def __init__(self, began_at: float) -> None:
        self.began_at = began_at
        self.count = 0


class Refusals:
    """See the head of this file."""

    def __init__(self) -> None:
        self._hosts: dict[str, _Host] = {}  # the one that came back last is last

    def record(self, peer: str, reason: str, now: float) -> str | None:
        """Return the line about a refused connection of a peer (host:port), None for no line."""
        name = peer.rpartition(":")[0] or peer
        host = self._hosts.pop(name, None)
        more = ""
        if host is None or now - host.began_at >= INTERVAL_S:
            untold = 0 if host is None else host.count - LINES_MAX
            if untold > 0:
                more = f" ({untold} more connections from there ended so before, without a line)"
            host = _Host(now)
        self._hosts[name] = host
        if len(self._hosts) > HOSTS_MAX:
            del self._hosts[next(iter(self._hosts))]
        host.count += 1
        if host.count > LINES_MAX:
            return None
        if host.count == LINES_MAX:
            more += "; the next ones from there are counted only, for a minute"
        return f"closing the connection from {peer}: {reason}{more}"

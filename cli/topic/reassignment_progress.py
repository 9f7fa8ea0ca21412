"""How far reassignments are: the bytes that are still to be copied, and how long that takes."""

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from minibroker.audit.summary import in_bytes
from minibroker.cli.terminal import counted
from minibroker.cli.topic.reassignment_plan import Name
from minibroker.protocol.constants import NO_NODE

if TYPE_CHECKING:
    from minibroker.client.admin import PartitionReassignment

# The logs of each broker that answered, in bytes. A broker leaves out the logs that it has not.
Sizes: TypeAlias = Mapping[int, Mapping[Name, int]]

WINDOW_S: Final = 30.0  # the rate of a copy is measured over so long
LINE_S: Final = 5.0  # between two lines while no partition is done


class Sight(NamedTuple):
    """The reassignments under way at one moment, the leaders of partitions, and the sizes of logs.
    Partitions whose leader is not known, and brokers that did not answer, are left out."""

    ongoing: "Mapping[Name, PartitionReassignment]"
    leaders: Mapping[Name, int]
    sizes: Sizes


def bytes_left(seen: Sight) -> dict[tuple[Name, int], int]:
    """Return the bytes that each added replica lacks of what its leader has. A replica is left out
    if the size of one of the two logs is not known."""
    lacking = {}
    for name, one in seen.ongoing.items():
        leader_size = seen.sizes.get(seen.leaders.get(name, NO_NODE), {}).get(name)
        if leader_size is None:
            continue
        for node in one.adding_replicas:
            if node in seen.sizes:
                lacking[name, node] = max(0, leader_size - seen.sizes[node].get(name, 0))
    return lacking


class TimeLeft:
    """Estimates when nothing is left, from what was left at earlier times: as if the rate of the
    last `WINDOW_S` seconds stayed."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def estimate(self, now: float, left: int) -> float | None:
        """Note that `left` bytes are left at `now` (s). Return the seconds until none is; None
        while that is not known: at first, and if nothing was copied."""
        seen = self._seen
        seen.append((now, left))
        while len(seen) > 2 and seen[1][0] <= now - WINDOW_S:
            seen.popleft()
        begin, before = seen[0]
        copied = before - left
        return left * (now - begin) / copied if copied > 0 and now > begin else None


class Progress:
    """The lines about `total` reassignments, from what is under way at each time."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._measured: frozenset[tuple[Name, int]] = frozenset()
        self._time_left = TimeLeft()
        self._last: tuple[int, int] | None = None  # the partitions and bytes of the last line
        self._last_at = 0.0

    def line(self, now: float, seen: Sight) -> str | None:
        """Return the line to print at `now` (s), without bytes if none are known; None if there is
        no news."""
        lacking = bytes_left(seen)
        left, measured = sum(lacking.values()), frozenset(lacking)
        if any(name in seen.ongoing for name, _ in self._measured ^ measured):
            self._time_left = TimeLeft()  # other replicas are measured than before
        self._measured = measured
        seconds = self._time_left.estimate(now, left)
        count = len(seen.ongoing)
        is_one_done = self._last is None or self._last[0] != count
        is_late = now >= self._last_at + LINE_S
        if not is_one_done and not (is_late and self._last != (count, left)):
            return None
        self._last, self._last_at = (count, left), now
        text = f"{self._total - count} of {counted(self._total, 'partition')} done"
        if measured:
            text += f", {in_bytes(left)} left"
        return f"{text}, about {in_time(seconds)}" if measured and seconds is not None else text


def in_time(seconds: float) -> str:
    """Return a duration in words, in a unit that fits: `40 s`, `3 min`, `2.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

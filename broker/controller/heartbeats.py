"""Which brokers the controller hears, from their answers to its probes, and which ones it fences.

A broker is *heard* at the moment when the controller received its answer to a probe, if the broker
also acknowledges its orders: an answer counts if no order was waiting, or once the broker has
acknowledged an order after it. The controller *fences* a registered broker that it has not heard
for the broker's time-out. The controller counts from receipt and the broker from sending
(`controller_lease.py`), so the broker stops relying on its lease first:

    sent by the broker <= received here      both wait the same time from there

This is sound because of the following rules; do not change one of them alone:

* The controller confirms only the stamps of answers that made a broker heard, and none while the
  broker is fenced. `judge` decides. Its caller writes the consequences into the metadata before it
  calls `judge` again, and only `judge` ends a fence.
* The controller confirms a broker whose lease lapsed only with `confirmed_lapse`: it has sent
  all roles again since the broker reported the lapse, and since it heard the broker again.
* Each registration begins with a whole time-out, and a new controller gives one to every broker.
* Time in which the controller did not run does not count as a broker's silence (`tick`). That can
  only delay fences.

A broker of an earlier version answers no probes. Its lease in the store is enough: it is never
fenced.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from minibroker.broker.controller.state import BrokerRegistration
from minibroker.protocol.constants import NO_LAPSE, NO_STAMP

ALONE_MAX: Final = 2  # registered brokers of which one may control without hearing the other


class Confirmation(NamedTuple):
    """What a probe confirms: the stamp of the newest answer that counts, and the number of the
    lapse of the broker's lease after which all its roles were sent again."""

    stamp: int = NO_STAMP
    confirmed_lapse: int = NO_LAPSE


class _Heartbeats:
    """What is known of one registration; times in seconds. Before the first answer `heard_at` is
    the time of its registration."""

    __slots__ = (
        "answered_at",
        "broker",
        "confirmed_lapse",
        "heard_at",
        "is_fenced",
        "lapse",
        "mark",
        "stamp",
        "waiting",
    )

    def __init__(self, broker: BrokerRegistration, now: float) -> None:
        self.broker = broker
        self.heard_at = now
        self.answered_at = now
        self.is_fenced = False
        # Of the newest answer that counts; `heard_at` is when that was received.
        self.stamp = NO_STAMP
        # Received at, and the stamp of, the newest answer, while an order waits.
        self.waiting: tuple[float, int] | None = None
        self.lapse = NO_LAPSE  # of the broker's lease, as it said last
        self.confirmed_lapse = NO_LAPSE
        # `Pushes.acknowledged` once the broker has all roles again.
        self.mark: int | None = None

    @property
    def timeout_s(self) -> float:
        """For how long the broker may be silent."""
        return self.broker.fence_timeout_ms / 1000 or math.inf

    def is_silent(self, now: float) -> bool:
        """Whether the broker was not heard for its time-out."""
        return now - self.heard_at >= self.timeout_s

    def is_answering(self, interval_s: float, now: float) -> bool:
        """Whether the broker has answered within an interval and half of its time-out, the longest
        that a connection waits for an answer."""
        return now - self.answered_at <= self.timeout_s / 2 + interval_s

    def hear(self, at: float, stamp: int) -> None:
        """Count an answer that was received at this time."""
        self.heard_at, self.stamp = max(self.heard_at, at), stamp
        self.waiting = None

    def fence(self) -> None:
        """Fence the broker. The roles that it was sent are out of date from now on."""
        self.is_fenced = True
        self.mark, self.confirmed_lapse = None, NO_LAPSE


class BrokerHeartbeats:
    """See the head of this module. `own_id` is the controller's own broker."""

    def __init__(self, own_id: int, interval_s: float, now: float) -> None:
        self._own_id = own_id
        self._interval_s = interval_s
        self._ticked_at = now
        self._known: dict[int, _Heartbeats] = {}

    def set_registered(self, registered: Mapping[int, BrokerRegistration], now: float) -> None:
        """Set the registered brokers; a new registration counts as heard now."""
        self._known = {
            node: known
            if (known := self._known.get(node)) is not None and known.broker.epoch == broker.epoch
            else _Heartbeats(broker, now)
            for node, broker in registered.items()
        }

    def tick(self, now: float) -> None:
        """Call it at least every interval. If more time has passed, the controller did not run, and
        the excess is no broker's silence."""
        lost_s = now - self._ticked_at - self._interval_s
        self._ticked_at = now
        if lost_s > 0:
            for known in self._known.values():
                known.heard_at = min(now, known.heard_at + lost_s)
                known.answered_at = min(now, known.answered_at + lost_s)

    # -- what brokers say

    def on_answer(
        self, broker: BrokerRegistration, stamp: int, lapse: int, now: float, *, is_obedient: bool
    ) -> None:
        """Record an answer to a probe; `is_obedient`: no order waits for an acknowledgement."""
        known = self._of(broker)
        if known is None:
            return
        known.answered_at = now
        if lapse != known.lapse:
            known.lapse, known.mark = lapse, None
        known.waiting = (now, stamp)
        if is_obedient:
            known.hear(now, stamp)

    def on_acknowledgement(self, broker: BrokerRegistration) -> None:
        """Record that the broker has acknowledged an order."""
        known = self._of(broker)
        if known is not None and known.waiting is not None:
            known.hear(*known.waiting)

    # -- what it is told

    def confirmation(self, broker: BrokerRegistration) -> Confirmation:
        """Return what the next probe of the broker confirms."""
        known = self._of(broker)
        if known is None or known.is_fenced:
            return Confirmation()
        return Confirmation(known.stamp, known.confirmed_lapse)

    def needs_roles(self, broker: BrokerRegistration) -> bool:
        """Whether the broker needs all roles again, and sending them has not begun."""
        known = self._of(broker)
        return (
            known is not None
            and not known.is_fenced
            and known.lapse not in (NO_LAPSE, known.confirmed_lapse)
            and known.mark is None
        )

    def begin_roles(self, broker: BrokerRegistration, mark: int) -> None:
        """Record that the broker is being sent all roles again. It has them once
        `Pushes.acknowledged` reaches `mark`."""
        known = self._of(broker)
        assert known is not None, "it needed roles just now"
        assert not known.is_fenced, "others are elected first"
        known.mark = mark

    def on_acknowledged(self, broker: BrokerRegistration, acknowledged: int) -> None:
        """Record how much the broker has acknowledged, which may include all roles again."""
        known = self._of(broker)
        if known is not None and known.mark is not None and acknowledged >= known.mark:
            known.confirmed_lapse, known.mark = known.lapse, None

    # -- judging

    def is_due(self, now: float) -> bool:
        """Whether the controller is isolated, or `judge` would decide anything."""
        if self.is_isolated(now):
            return True
        may_fence = not self.is_doubtful(now)
        return any(
            known.is_fenced if not known.is_silent(now) else may_fence and not known.is_fenced
            for known in self._known.values()
        )

    def judge(self, now: float) -> frozenset[int]:
        """Decide which brokers are fenced, and return them. The caller must have written the
        consequences of the last decision.

        While too few brokers answer, the controller fences none: it may be isolated itself.
        """
        may_fence = not self.is_doubtful(now)
        for known in self._known.values():
            if not known.is_silent(now):
                known.is_fenced = False
            elif may_fence and not known.is_fenced:
                known.fence()
        return frozenset(node for node, known in self._known.items() if known.is_fenced)

    def is_isolated(self, now: float) -> bool:
        """Whether the controller hears fewer than half of the brokers, itself counted."""
        return self._hears_few(lambda known: not known.is_silent(now))

    def is_doubtful(self, now: float) -> bool:
        """Whether the controller may be isolated: too few brokers have answered its last probes."""
        return self._hears_few(lambda known: known.is_answering(self._interval_s, now))

    def _hears_few(self, is_heard: Callable[[_Heartbeats], bool]) -> bool:
        heard = sum(node == self._own_id or is_heard(one) for node, one in self._known.items())
        return len(self._known) > ALONE_MAX and 2 * heard < len(self._known)

    def _of(self, broker: BrokerRegistration) -> _Heartbeats | None:
        known = self._known.get(broker.node_id)
        return known if known is not None and known.broker.epoch == broker.epoch else None

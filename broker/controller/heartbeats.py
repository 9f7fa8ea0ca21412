"""Which brokers the controller hears: what it knows of each from probes, and whom it fences.

A broker is *heard* at the moment when the controller received an answer to a probe, provided that
the broker acknowledges its orders: an answer counts once no order was waiting, or once one was
acknowledged after it. A registered broker that was not heard for its time-out is *fenced*. The
controller counts from receipt and the broker from sending (`controller_lease.py`), so the broker
stops believing first:

    sent by the broker <= received here      both wait the same time from there

What makes that sound, and what must not be changed alone:

* The controller confirms only stamps of answers that made a broker heard, and while a broker is
  fenced it confirms none. `judge` decides, and its caller writes what follows from it into the
  metadata before it calls `judge` again, which is the only way to hear a fenced broker again.
* A broker whose standing lapsed is confirmed only with `told_lapse`: all roles were told again
  since it said so, and since it was heard again.
* Each registration begins with a whole time-out, and so does a controller with every broker.
* Time in which the controller did not run counts for nobody's silence (`tick`). That delays fences
  only.

A broker of an earlier version answers no probes. It is heard by its lease: never fenced.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from minibroker.broker.controller.state import BrokerRegistration
from minibroker.protocol.constants import NO_LAPSE, NO_STAMP

ALONE_MAX: Final = 2  # registered brokers of which one may govern without hearing the other


class Confirmation(NamedTuple):
    """What a probe tells: the stamp of the newest answer that counts, and the lapse of the broker's
    standing since which all its roles were told again."""

    stamp: int = NO_STAMP
    told_lapse: int = NO_LAPSE


class _Heartbeats:
    """One registration. Times in seconds; `heard_at` is its beginning before the first answer."""

    __slots__ = (
        "answered_at",
        "broker",
        "heard_at",
        "is_fenced",
        "lapse",
        "mark",
        "stamp",
        "told_lapse",
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
        self.lapse = NO_LAPSE  # of the broker's standing, as it said last
        self.told_lapse = NO_LAPSE
        # `Pushes.acknowledged` once the broker has all roles again.
        self.mark: int | None = None

    @property
    def timeout_s(self) -> float:
        """How long it may be silent."""
        return self.broker.fence_timeout_ms / 1000 or math.inf

    def is_silent(self, now: float) -> bool:
        """Whether it was not heard for its time-out."""
        return now - self.heard_at >= self.timeout_s

    def is_answering(self, interval_s: float, now: float) -> bool:
        """Whether it answered as lately as one does that is probed every interval and takes half of
        its time-out for each answer, which is what a connection lets it."""
        return now - self.answered_at <= self.timeout_s / 2 + interval_s

    def hear(self, at: float, stamp: int) -> None:
        """An answer that was received at this time counts."""
        self.heard_at, self.stamp = max(self.heard_at, at), stamp
        self.waiting = None

    def fence(self) -> None:
        """Whatever roles were told, others follow now."""
        self.is_fenced = True
        self.mark, self.told_lapse = None, NO_LAPSE


class BrokerHeartbeats:
    """See the head of this module. `own_id` is the controller's own broker."""

    def __init__(self, own_id: int, interval_s: float, now: float) -> None:
        self._own_id = own_id
        self._interval_s = interval_s
        self._ticked_at = now
        self._known: dict[int, _Heartbeats] = {}

    def set_registered(self, registered: Mapping[int, BrokerRegistration], now: float) -> None:
        """Who is registered; a registration that is new is heard as of now."""
        self._known = {
            node: known
            if (known := self._known.get(node)) is not None and known.broker.epoch == broker.epoch
            else _Heartbeats(broker, now)
            for node, broker in registered.items()
        }

    def tick(self, now: float) -> None:
        """To be called every interval at least. What is more was lost here, not at the brokers."""
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
        """An answer to a probe was received; `is_obedient`: no order waits to be acknowledged."""
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
        """The broker acknowledged an order."""
        known = self._of(broker)
        if known is not None and known.waiting is not None:
            known.hear(*known.waiting)

    # -- what it is told

    def confirmation(self, broker: BrokerRegistration) -> Confirmation:
        """What the next probe confirms."""
        known = self._of(broker)
        if known is None or known.is_fenced:
            return Confirmation()
        return Confirmation(known.stamp, known.told_lapse)

    def needs_roles(self, broker: BrokerRegistration) -> bool:
        """Whether all roles have to be told again, and nobody has begun with that."""
        known = self._of(broker)
        return (
            known is not None
            and not known.is_fenced
            and known.lapse not in (NO_LAPSE, known.told_lapse)
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
        """Record how much the broker has acknowledged: perhaps all roles, again."""
        known = self._of(broker)
        if known is not None and known.mark is not None and acknowledged >= known.mark:
            known.told_lapse, known.mark = known.lapse, None

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
        """Decide who is fenced. What followed from the last judgement must be written by now.

        While the controller doubts that others hear it, it fences nobody: it may be isolated.
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
        """Whether it may turn out to be isolated: too few have answered its last probes."""
        return self._hears_few(lambda known: known.is_answering(self._interval_s, now))

    def _hears_few(self, is_heard: Callable[[_Heartbeats], bool]) -> bool:
        heard = sum(node == self._own_id or is_heard(one) for node, one in self._known.items())
        return len(self._known) > ALONE_MAX and 2 * heard < len(self._known)

    def _of(self, broker: BrokerRegistration) -> _Heartbeats | None:
        known = self._known.get(broker.node_id)
        return known if known is not None and known.broker.epoch == broker.epoch else None

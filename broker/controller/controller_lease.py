"""A broker's lease with the controller: until when no controller can have fenced the broker.

The broker answers each probe with a *stamp*, its own clock at that moment. The controller confirms
the stamps of answers that it has received. A confirmed stamp is good for the fence time-out from
the moment when it was *made*: the controller counts from the receipt of the answer and so fences
later. Never count from the receipt of a confirmation, which may have been under way for any time.

Any controller's confirmation counts. A controller confirms only while its own lease in the store is
current. So its successor is elected after its last confirmation, and gives every registered broker
a whole time-out from there. The time-out is a session and some heartbeats: a lease outlasts the
death of a controller until its successor can confirm it.

If the store, asked at some moment, names no controller that fences, then no broker can be fenced
before a time-out from that moment has passed (`on_vacancy`).

A lease that has lapsed returns only when the controller says that it has sent all roles again
since then (`confirmed_lapse`): other leaders may have been elected meanwhile. A new registration
begins with a whole lease, because the controller sends its roles again in any case
(`Replicas.is_role_present`).
"""

import math
from typing import Final

from minibroker.protocol.constants import NO_EPOCH, NO_LAPSE, NO_STAMP, ErrorCode
from minibroker.protocol.messages.control import ProbeRequest, ProbeResponse

STAMPS_PER_S: Final = 1_000_000


class ControllerLease:
    """See the head of this module. `timeout_s` is that of the registration."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._until = -math.inf
        self._newest_stamp = NO_STAMP
        self._is_lapsed = True
        self._lapses = NO_LAPSE  # how many there were; the number of the newest
        self._controller_epoch = NO_EPOCH  # of the newest controller that has probed

    @property
    def lapse(self) -> int:
        """The number of the present lapse; NO_LAPSE if the lease held at the last check."""
        return self._lapses if self._is_lapsed else NO_LAPSE

    def begin(self, asked_at: float) -> None:
        """Begin the lease of a registration that the broker asked for at this time."""
        self._until = asked_at + self.timeout_s
        self._is_lapsed = False

    def is_current(self, now: float) -> bool:
        """Whether no controller can have fenced this broker."""
        self._check_end(now)
        return not self._is_lapsed

    def on_probe(self, request: ProbeRequest, broker_epoch: int, now: float) -> ProbeResponse:
        """Record what a controller confirms, and answer with a new stamp."""
        if request.controller_epoch < self._controller_epoch:
            return ProbeResponse(ErrorCode.STALE_CONTROLLER_EPOCH)
        if broker_epoch == NO_EPOCH or request.broker_epoch != broker_epoch:
            return ProbeResponse(ErrorCode.STALE_BROKER_EPOCH)
        self._controller_epoch = request.controller_epoch
        self._check_end(now)
        if NO_STAMP < request.confirmed <= self._newest_stamp:
            self._confirm(self.good_until(request.confirmed, now), request.confirmed_lapse, now)
        self._newest_stamp = math.floor(now * STAMPS_PER_S)
        return ProbeResponse(0, self._newest_stamp, self.lapse)

    def good_until(self, stamp: int, _now: float) -> float:
        """Until when a stamp is good that is confirmed now: counted from when it was made."""
        return stamp / STAMPS_PER_S + self.timeout_s

    def on_vacancy(self, asked_at: float, now: float) -> None:
        """Handle that the store, asked at this time, named no controller that fences."""
        self._check_end(now)
        if not self._is_lapsed:
            self._until = max(self._until, asked_at + self.timeout_s)

    def _confirm(self, until: float, confirmed_lapse: int, now: float) -> None:
        if until > now and self.may_return(confirmed_lapse):
            self._is_lapsed = False
            self._until = max(self._until, until)

    def may_return(self, confirmed_lapse: int) -> bool:
        """Whether the controller has sent all roles since the last lapse; it sent them after
        `confirmed_lapse`."""
        return not self._is_lapsed or confirmed_lapse == self._lapses

    def _check_end(self, now: float) -> None:
        """Record the end of the lease, once."""
        if not self._is_lapsed and now >= self._until:
            self._is_lapsed = True
            self._lapses += 1

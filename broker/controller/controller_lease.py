"""A broker's standing with the controller, as a lease: until when no controller can have fenced it.

The broker answers each probe with a *stamp*, its own clock at that moment. The controller confirms
stamps of answers that it has received. A confirmed stamp is good for the fence time-out from the
moment when it was *made*: the controller, which counts from receipt, fences later than that. Never
count from the receipt of a confirmation: it may have been under way for any time.

Which controller has confirmed makes no difference. One confirms only while its own lease in the
store is current, so its successor is elected after all that it has confirmed, and gives every
registered broker a whole time-out from there. So the death of a controller ends nobody's standing
before its successor can confirm: the time-out is a session and some heartbeats.

Where no controller that fences is elected, as the store said when it was asked at some moment,
nobody can be fenced before a time-out from that moment (`on_vacancy`).

A standing that lapsed returns only once the controller says that all roles were told again since
(`told_lapse`): in the gap others may have been elected. A new registration begins with a standing,
for its roles are told anew in any case (`Replicas.is_role_present`).
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
        """The number of the present lapse; NO_LAPSE while it stands, as far as was looked."""
        return self._lapses if self._is_lapsed else NO_LAPSE

    def begin(self, asked_at: float) -> None:
        """A registration that was asked for at this time counts."""
        self._until = asked_at + self.timeout_s
        self._is_lapsed = False

    def is_standing(self, now: float) -> bool:
        """Whether no controller can have fenced this broker."""
        self._look(now)
        return not self._is_lapsed

    def on_probe(self, request: ProbeRequest, broker_epoch: int, now: float) -> ProbeResponse:
        """Take what a controller confirms, and answer with a new stamp."""
        if request.controller_epoch < self._controller_epoch:
            return ProbeResponse(ErrorCode.STALE_CONTROLLER_EPOCH)
        if broker_epoch == NO_EPOCH or request.broker_epoch != broker_epoch:
            return ProbeResponse(ErrorCode.STALE_BROKER_EPOCH)
        self._controller_epoch = request.controller_epoch
        self._look(now)
        if NO_STAMP < request.confirmed <= self._newest_stamp:
            self._confirm(self.good_until(request.confirmed, now), request.told_lapse, now)
        self._newest_stamp = math.floor(now * STAMPS_PER_S)
        return ProbeResponse(0, self._newest_stamp, self.lapse)

    def good_until(self, stamp: int, _now: float) -> float:
        """How long a stamp is good that is confirmed now: it counts from when it was made."""
        return stamp / STAMPS_PER_S + self.timeout_s

    def on_vacancy(self, asked_at: float, now: float) -> None:
        """The store was asked at this time, and no controller that fences was elected."""
        self._look(now)
        if not self._is_lapsed:
            self._until = max(self._until, asked_at + self.timeout_s)

    def _confirm(self, until: float, told_lapse: int, now: float) -> None:
        if until > now and self.may_stand(told_lapse):
            self._is_lapsed = False
            self._until = max(self._until, until)

    def may_stand(self, told_lapse: int) -> bool:
        """Whether all roles that count have been told, given since which lapse they were."""
        return not self._is_lapsed or told_lapse == self._lapses

    def _look(self, now: float) -> None:
        """Note that the standing ended, if nobody did before."""
        if not self._is_lapsed and now >= self._until:
            self._is_lapsed = True
            self._lapses += 1

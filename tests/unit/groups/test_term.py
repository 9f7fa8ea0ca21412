"""The live groups of one term, beside what the coordinator's tests show of them."""

from typing import Any

from minibroker.broker.groups.member import Client
from minibroker.broker.groups.offsets import OffsetTable
from minibroker.broker.groups.roster import GroupLimits
from minibroker.broker.groups.term import MOMENTS_SPARE, Term, World
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.groups import GroupProtocol, JoinGroupRequest, LeavingMember

CLIENT = Client("client", "host")
LONG_MS = 1_800_000


def open_term() -> Term:
    """A term of nobody's partition: nothing is written."""
    limits = GroupLimits(1_000, LONG_MS, 100, 100)
    nothing: Any = None
    return Term(0, OffsetTable(), World(limits, 5.0, lambda: 0, nothing, lambda ticket: None))


def test_groups_that_are_gone_leave_nothing() -> None:
    """Whoever asks for ids in group after group, and leaves, costs no memory that stays."""
    term = open_term()
    for number in range(10 * MOMENTS_SPARE):
        name = f"g{number}"
        request = JoinGroupRequest(name, LONG_MS, LONG_MS, protocols=(GroupProtocol("p"),))
        group = term.get_or_make(name, 0.0)
        assert group.join(request, CLIENT, name, 0.0).answer.error == ErrorCode.MEMBER_ID_REQUIRED
        term.settle(group, 0.0)
        assert term.deadline < float("inf")
        assert group.leave(LeavingMember(name), 0.0) == ErrorCode.NONE
        term.settle(group, 0.0)
    groups, moments = term.statistics()
    assert groups == 0
    assert moments <= MOMENTS_SPARE

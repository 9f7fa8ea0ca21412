"""The registry of live groups, beside what the coordinator's tests show of them."""

from typing import Any

from minibroker.broker.groups.group_members import GroupLimits
from minibroker.broker.groups.member import Client
from minibroker.broker.groups.offsets import OffsetTable
from minibroker.broker.groups.registry import MOMENTS_SPARE, GroupRegistry
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.groups import GroupProtocol, JoinGroupRequest, LeavingMember

CLIENT = Client("client", "host")
LONG_MS = 1_800_000


def open_registry() -> GroupRegistry:
    """The registry of no partition: nothing is written."""
    limits = GroupLimits(1_000, LONG_MS, 100, 100)
    nothing: Any = None
    return GroupRegistry(
        0,
        OffsetTable(),
        limits,
        write_timeout_s=5.0,
        wall_ms=lambda: 0,
        append=nothing,
        wake=lambda ticket: None,
    )


def test_groups_that_are_gone_leave_nothing() -> None:
    """Whoever asks for ids in group after group, and leaves, costs no memory that stays."""
    registry = open_registry()
    for number in range(10 * MOMENTS_SPARE):
        name = f"g{number}"
        request = JoinGroupRequest(name, LONG_MS, LONG_MS, protocols=(GroupProtocol("p"),))
        group = registry.get_or_make(name, 0.0)
        assert group.join(request, CLIENT, name, 0.0).answer.error == ErrorCode.MEMBER_ID_REQUIRED
        registry.follow_up(group, 0.0)
        assert registry.deadline < float("inf")
        assert group.leave(LeavingMember(name), 0.0) == ErrorCode.NONE
        registry.follow_up(group, 0.0)
    groups, moments = registry.statistics()
    assert groups == 0
    assert moments <= MOMENTS_SPARE

"""DESCRIBE_ACLS: there are no access rules."""

from typing import Final

from minibroker.broker.server.services import Services
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.acls import DescribeAclsRequest, DescribeAclsResponse

# Kafka's bits of operations (1 << number), all that a resource has: without access rules every
# client may do everything.
TOPIC_OPERATIONS: Final = sum(1 << number for number in (3, 4, 5, 6, 7, 8, 10, 11))
GROUP_OPERATIONS: Final = sum(1 << number for number in (3, 6, 8, 10, 11))
CLUSTER_OPERATIONS: Final = sum(1 << number for number in (5, 7, 8, 9, 10, 11, 12))


def describe(services: Services, request: DescribeAclsRequest, now: float) -> DescribeAclsResponse:
    """Answer SECURITY_DISABLED, as Kafka does without an authorizer. Tools that copy access rules,
    such as MirrorMaker, then know that there are none to copy."""
    return DescribeAclsResponse(
        ErrorCode.SECURITY_DISABLED, "there are no ACLs: every client may do everything"
    )

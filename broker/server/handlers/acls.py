"""DESCRIBE_ACLS: there are no access rules."""

from minibroker.broker.server.services import Services
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.acls import DescribeAclsRequest, DescribeAclsResponse


def describe(services: Services, request: DescribeAclsRequest, now: float) -> DescribeAclsResponse:
    """Answer SECURITY_DISABLED, as Kafka does without an authorizer. Tools that copy access rules,
    such as MirrorMaker, then know that there are none to copy."""
    return DescribeAclsResponse(
        ErrorCode.SECURITY_DISABLED, "there are no ACLs: every client may do everything"
    )

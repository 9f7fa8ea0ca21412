"""DESCRIBE_ACLS: requests access rules, which no broker has."""

from dataclasses import dataclass

from minibroker.protocol.messages import Request

ANY = 1  # of a resource type, a pattern type, an operation or a permission type


@dataclass(frozen=True, slots=True)
class DescribeAclsRequest(Request["DescribeAclsResponse"]):
    """Requests the access rules that match all of these; None and 1 match any. The numbers are
    Kafka's."""

    resource_type: int = ANY
    resource_name: str | None = None
    pattern_type: int = ANY
    principal: str | None = None
    host: str | None = None
    operation: int = ANY
    permission_type: int = ANY


@dataclass(frozen=True, slots=True)
class DescribeAclsResponse:
    """`error` is SECURITY_DISABLED: every client may do everything."""

    error: int = 0
    error_message: str | None = None

"""Access rules: DESCRIBE_ACLS."""

from typing import Any, Final

from minibroker.protocol.constants import ApiKey
from minibroker.protocol.kafka import admin_apis
from minibroker.protocol.kafka.adapters.adapter import Adapter, cut_text
from minibroker.protocol.kafka.schema import Version
from minibroker.protocol.messages.acls import DescribeAclsRequest, DescribeAclsResponse


def _request(asked: Any, version: Version) -> DescribeAclsRequest:
    return DescribeAclsRequest(*asked)


def _response(answer: DescribeAclsResponse, version: Version) -> Any:
    return admin_apis.DESCRIBE_ACLS.response.make(0, answer.error, cut_text(answer.error_message))


ADAPTERS: Final = (Adapter(admin_apis.DESCRIBE_ACLS, ApiKey.DESCRIBE_ACLS, _request, _response),)

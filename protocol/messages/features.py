"""UPDATE_FEATURES: asks the controller for other levels of features.

The level of `minibroker.version` is the one number on which the formats of a cluster depend: of the
metadata store, of the files and of what brokers tell each other. Each broker registers the levels
that it supports; the cluster's is finalized, and is raised by an operator when all brokers support
a higher one. The levels of Kafka's own features are fixed in a version of the brokers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from minibroker.protocol.messages import Request
from minibroker.protocol.messages.transactions import SECOND_PROTOCOL

MINIBROKER_VERSION: Final = "minibroker.version"

# The features of Kafka that clients look for. group.version 1 is the consumer protocol of groups
# (KIP-848), transaction.version 2 the second protocol of transactions (KIP-890). All brokers of
# this version have the same.
FEATURES: Final[Mapping[str, int]] = MappingProxyType(
    {"group.version": 1, "transaction.version": SECOND_PROTOCOL}
)


class FeatureUpgrade(IntEnum):
    """Which change of a feature's level a request allows."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True)
class FeatureUpdate:
    """The level that a feature is to have; `upgrade_type` is a `FeatureUpgrade`."""

    feature: str
    level: int
    upgrade_type: int = FeatureUpgrade.UPGRADE


@dataclass(frozen=True, slots=True)
class UpdateFeaturesRequest(Request["UpdateFeaturesResponse"]):
    """All of these levels, or none."""

    updates: tuple[FeatureUpdate, ...] = ()
    timeout_ms: int = 60_000
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class UpdateFeaturesResponse:
    """The first error of all updates; `features` are those of a request without an error."""

    error: int = 0
    error_message: str | None = None
    features: tuple[str, ...] = ()

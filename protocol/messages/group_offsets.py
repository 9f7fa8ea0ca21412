"""OFFSET_COMMIT, OFFSET_FETCH and OFFSET_DELETE: a group's committed offset in each partition."""

from dataclasses import dataclass

from minibroker.protocol.constants import NO_EPOCH, NO_OFFSET
from minibroker.protocol.messages import Request
from minibroker.protocol.messages.groups import NO_GENERATION


@dataclass(frozen=True, slots=True)
class PartitionCommit:
    """The offset of the next record to read; `leader_epoch` that of the last one read.

    `topic_id` is the id that the topic must have (empty: not checked); `topic` may be "" beside it.
    """

    topic: str
    partition: int
    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str | None = None
    topic_id: bytes = b""


@dataclass(frozen=True, slots=True)
class OffsetCommitRequest(Request["OffsetCommitResponse"]):
    """Sent by a member, or, with generation -1 and no member id, by a consumer that assigns its own
    partitions. With `knows_unknown_group` a member of a group that does not exist gets
    GROUP_ID_NOT_FOUND, else ILLEGAL_GENERATION."""

    group_id: str
    generation: int = NO_GENERATION
    member_id: str = ""
    instance_id: str | None = None
    partitions: tuple[PartitionCommit, ...] = ()
    knows_unknown_group: bool = False


@dataclass(frozen=True, slots=True)
class PartitionCommitted:
    """The result for one partition's offset."""

    topic: str
    partition: int
    error: int = 0
    topic_id: bytes = b""


@dataclass(frozen=True, slots=True)
class OffsetCommitResponse:
    """An answer for each partition of the request, in its order."""

    partitions: tuple[PartitionCommitted, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """A partition by name. `topic_id` as in `PartitionCommit`."""

    topic: str
    partition: int
    topic_id: bytes = b""


@dataclass(frozen=True, slots=True)
class GroupPartitions:
    """The partitions of one of several groups; None: all."""

    group_id: str
    partitions: tuple[GroupPartition, ...] | None = None


@dataclass(frozen=True, slots=True)
class OffsetFetchRequest(Request["OffsetFetchResponse"]):
    """`partitions` None requests all committed offsets of the group.

    With `require_stable` a partition with a commit in progress gets UNSTABLE_OFFSET_COMMIT.
    `groups`, unless nil, are several groups in place of the one.
    """

    group_id: str
    partitions: tuple[GroupPartition, ...] | None = None
    require_stable: bool = False
    groups: tuple[GroupPartitions, ...] | None = None


@dataclass(frozen=True, slots=True)
class PartitionGroupOffset:
    """`offset` is -1 if none was committed."""

    topic: str
    partition: int
    error: int = 0
    offset: int = NO_OFFSET
    leader_epoch: int = NO_EPOCH
    metadata: str | None = None
    topic_id: bytes = b""


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """The offsets of one of several groups. `error` as in `OffsetFetchResponse`."""

    group_id: str
    error: int = 0
    partitions: tuple[PartitionGroupOffset, ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetFetchResponse:
    """`error` is that of the whole request; then each partition that it names has it, too.
    `groups` has the answer for each of several groups."""

    error: int = 0
    partitions: tuple[PartitionGroupOffset, ...] = ()
    groups: tuple[GroupOffsets, ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetDeleteRequest(Request["OffsetDeleteResponse"]):
    """Deletes committed offsets of a group; no member may be subscribed to their topics."""

    group_id: str
    partitions: tuple[GroupPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetDeleteResponse:
    """`error` is that of the whole request; then `partitions` is empty."""

    error: int = 0
    partitions: tuple[PartitionCommitted, ...] = ()

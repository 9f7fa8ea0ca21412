"""What the records of a group of the consumer protocol say, and the step of a member towards its
target.

A partition is owned by a member while the member's current assignment names it, as assigned or as
to be revoked. `next_assignment` gives a member no partition that another one owns. So each
partition has one owner, whatever the target assignment says.
"""

from collections.abc import Collection, Mapping

from minibroker.broker.groups.consumer_records import (
    NO_PARTITIONS,
    ConsumerKey,
    ConsumerRecord,
    ConsumerValue,
    CurrentAssignment,
    GroupEpoch,
    MemberMetadata,
    MemberState,
    MemberTarget,
    Partitions,
    TargetEpoch,
    TopicIdPartition,
    record_bytes,
)

NEW_MEMBER = CurrentAssignment(0)


class ConsumerState:
    """See the head of this module. Only `set` changes it."""

    def __init__(self, group_id: str, records: Mapping[ConsumerKey, ConsumerValue]) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.metadata_hash = 0
        self.target_epoch = 0
        self.members: dict[str, MemberMetadata] = {}
        self.currents: dict[str, CurrentAssignment] = {}
        self.targets: dict[str, Partitions] = {}
        self.static: dict[str, str] = {}  # member ids by instance ids
        self.classic: set[str] = set()  # the members that use the classic protocol
        self.owners: dict[TopicIdPartition, str] = {}
        self.held_bytes = 0
        self._records: dict[ConsumerKey, ConsumerValue] = {}
        for key, value in records.items():
            self.set(key, value)

    @property
    def keys(self) -> list[ConsumerKey]:
        """The keys of all its records."""
        return list(self._records)

    def key(self, kind: ConsumerRecord, name: str = "") -> ConsumerKey:
        """Return the key of a record of this group."""
        return ConsumerKey(kind, self.group_id, name)

    def set(self, key: ConsumerKey, value: ConsumerValue | None) -> ConsumerValue | None:
        """Apply a record, without a value a tombstone; return the value before it."""
        before = self._records.pop(key, None)
        if value is not None:
            self._records[key] = value
        self.held_bytes += record_bytes(key, value) - record_bytes(key, before)
        match key.kind:
            case ConsumerRecord.GROUP:
                group = value if isinstance(value, GroupEpoch) else GroupEpoch(0)
                self.epoch, self.metadata_hash = group
            case ConsumerRecord.TARGET:
                self.target_epoch = value.epoch if isinstance(value, TargetEpoch) else 0
            case ConsumerRecord.MEMBER_TARGET:
                self.targets.pop(key.name, None)
                if isinstance(value, MemberTarget):
                    self.targets[key.name] = value.partitions
            case ConsumerRecord.MEMBER:
                self._set_member(key.name, value if isinstance(value, MemberMetadata) else None)
            case ConsumerRecord.CURRENT:
                self._set_current(key.name, value if isinstance(value, CurrentAssignment) else None)
            case _:
                pass  # what a pattern matched is found out by each coordinator
        return before

    def _set_member(self, member_id: str, member: MemberMetadata | None) -> None:
        before = self.members.pop(member_id, None)
        instance_id = None if before is None else before.instance_id
        if instance_id is not None and self.static.get(instance_id) == member_id:
            del self.static[instance_id]
        self.classic.discard(member_id)
        if member is not None:
            self.members[member_id] = member
            if member.classic is not None:
                self.classic.add(member_id)
            if member.instance_id is not None:
                self.static[member.instance_id] = member_id

    def _set_current(self, member_id: str, current: CurrentAssignment | None) -> None:
        before = self.currents.pop(member_id, None)
        if before is not None:
            for partition in (*before.assigned, *before.revoking):
                if self.owners.get(partition) == member_id:
                    del self.owners[partition]
        if current is not None:
            self.currents[member_id] = current
            self.owners.update(dict.fromkeys(current.assigned, member_id))
            self.owners.update(dict.fromkeys(current.revoking, member_id))

    def is_at_target(self, member_id: str) -> bool:
        """Whether a member has exactly what the target assignment gives it."""
        current = self.currents.get(member_id, NEW_MEMBER)
        return current.state is MemberState.STABLE and current.epoch == self.target_epoch

    def next_current(
        self, member_id: str, owned: Collection[TopicIdPartition] | None
    ) -> CurrentAssignment:
        """Return a member's next assignment. `owned` is what the member says it has, if it does."""
        return next_assignment(
            self.currents.get(member_id, NEW_MEMBER),
            self.target_epoch,
            self.targets.get(member_id, NO_PARTITIONS),
            owned,
            self.owners,
        )


def next_assignment(
    current: CurrentAssignment,
    target_epoch: int,
    target: Partitions,
    owned: Collection[TopicIdPartition] | None,
    owners: Collection[TopicIdPartition],
) -> CurrentAssignment:
    """Return the next assignment of a member on its way to `target`.

    The member stays in its epoch until it has revoked what the target does not give it; then it is
    in the target's epoch, and gets the partitions that are not among `owners`, at once or later.
    """
    if current.state is MemberState.STABLE and current.epoch == target_epoch:
        return current
    if current.state is MemberState.UNREVOKED and (
        owned is None or not current.revoking.isdisjoint(owned)
    ):
        return current
    kept = current.assigned & target
    revoking = current.assigned - target
    if revoking and (owned is None or not revoking.isdisjoint(owned)):
        state = MemberState.UNREVOKED
        return CurrentAssignment(current.epoch, current.previous_epoch, state, kept, revoking)
    missing = target - kept
    free = frozenset(partition for partition in missing if partition not in owners)
    state = MemberState.STABLE if len(free) == len(missing) else MemberState.UNRELEASED
    # An answer that adds nothing need not be told apart from the one before.
    is_same = current.epoch == target_epoch and not free
    previous = current.previous_epoch if is_same else current.epoch
    return CurrentAssignment(target_epoch, previous, state, kept | free)

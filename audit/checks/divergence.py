"""Find the replicas of a partition that differ from the others, by comparing each with each.

No log is right because its broker leads: the leader's may be the wrong one. At each offset where
two logs diverge, the replicas that have not diverged before are grouped by what they hold. The
first of these rules that decides names the wrong ones:

1. If ledgers cover the offset: a replica that holds another record than clients saw, or none, is
   wrong.
2. A batch that is damaged, or has records that cannot be read, or is absent, is wrong if others
   have a whole one.
3. Replicas that are known to have lost or repeated something in this log have no vote: if all
   others hold the same, that is right.
4. The majority is right, if a member of it is in sync.
5. The in-sync replicas are right if all of them agree and the others are no majority.

If no rule decides, all replicas are named and the finding leaves open which is right: an operator
who moved one side away might lose the better copy. A majority can be wrong, too; only a ledger or a
copy can show that.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeAlias


class Batch(NamedTuple):
    """A batch at an offset of a log; its place is None where it was not looked up."""

    last_offset: int
    identity: int
    leader_epoch: int
    is_sound: bool
    segment: int | None
    position: int | None

    @property
    def content(self) -> "Content":
        """The part that copies of a batch have in common."""
        return self[:4]


Content: TypeAlias = tuple[int, int, int, bool] | None


class Pair(NamedTuple):
    """Two logs that were compared from offset `start` to `end`.

    `offset` is that of the first batch that differs, None if there is none; `differing` counts the
    stretches of offsets that differ.
    """

    brokers: tuple[int, int]
    start: int
    end: int
    offset: int | None = None
    batches: tuple[Batch | None, Batch | None] = (None, None)
    differing: int = 0

    def with_spoilt(self, spoilt: Collection[tuple[int, int | None, int | None]]) -> "Pair":
        """Return the pair; `spoilt` are the broker, segment and position of batches whose records
        cannot be read, and which are not sound."""
        first, second = (
            batch._replace(is_sound=False)
            if batch and (broker, batch.segment, batch.position) in spoilt
            else batch
            for broker, batch in zip(self.brokers, self.batches, strict=True)
        )
        return self._replace(batches=(first, second))


class Divergence(NamedTuple):
    """A replica that differs, and one that it differs from; `said` is the reason in words."""

    broker: int
    other_broker: int
    offset: int
    batch: Batch | None
    other_batch: Batch | None
    differing: int
    said: str


def find_divergences(
    pairs: Sequence[Pair],
    in_sync: Mapping[int, bool],
    ledgers: Mapping[tuple[int, int], bool],
    doubtful: Collection[int] = (),
) -> list[Divergence]:
    """Return the wrong replicas of one partition, each at the first offset where it is named.

    `ledgers` says, by offset where logs diverge and broker, whether the broker holds what clients
    were told is there. `doubtful` are the brokers whose log is known, by other evidence than this
    difference, to have lost or repeated something.
    """
    named: dict[int, Divergence] = {}
    for offset in sorted({pair.offset for pair in pairs if pair.offset is not None}):
        held = _held(pairs, offset, named)
        groups = _groups(held)
        if len(groups) < 2:
            continue
        right = {broker: ledgers[offset, broker] for broker in held if (offset, broker) in ledgers}
        wrong, said = _decide(groups, in_sync, right, doubtful)
        for broker in sorted(wrong):
            other = _counterpart(broker, groups, wrong)
            named[broker] = Divergence(
                broker,
                other,
                offset,
                held[broker],
                held[other],
                max(pair.differing for pair in pairs if broker in pair.brokers),
                said,
            )
    return [named[broker] for broker in sorted(named)]


def _counterpart(broker: int, groups: Sequence["_Group"], wrong: Collection[int]) -> int:
    """Return a replica that holds another batch: one that is right, if any is."""
    others = [group.brokers[0] for group in groups if broker not in group.brokers]
    return min(others, key=lambda other: (other in wrong, other))


def _held(
    pairs: Sequence[Pair], offset: int, named: Mapping[int, Divergence]
) -> dict[int, Batch | None]:
    """Return what each comparable replica holds at an offset where two of them diverge."""
    held: dict[int, Batch | None] = {}
    pairs = [pair for pair in pairs if named.keys().isdisjoint(pair.brokers)]
    for pair in pairs:
        if pair.offset == offset:
            held.update(zip(pair.brokers, pair.batches, strict=True))
    last_offset = max((batch.last_offset for batch in held.values() if batch), default=offset)
    for pair in pairs:
        if pair.offset is None or pair.offset > offset:
            for known, other in (pair.brokers, pair.brokers[::-1]):
                if known in held and other not in held and pair.start <= last_offset < pair.end:
                    same = held[known]
                    held[other] = same and same._replace(segment=None, position=None)
    return held


class _Group(NamedTuple):
    """Brokers that hold the same; `is_whole`: what they hold is an undamaged batch."""

    brokers: tuple[int, ...]
    is_whole: bool


def _groups(held: Mapping[int, Batch | None]) -> list[_Group]:
    """Return the groups of brokers that hold the same, the largest first."""
    found: dict[Content, list[int]] = {}
    for broker in sorted(held):
        batch = held[broker]
        found.setdefault(batch.content if batch else None, []).append(broker)
    groups = (
        _Group(tuple(brokers), is_whole=content is not None and content[-1])
        for content, brokers in found.items()
    )
    return sorted(groups, key=lambda group: (-len(group.brokers), group.brokers))


def _decide(
    groups: Sequence[_Group],
    in_sync: Mapping[int, bool],
    right: Mapping[int, bool],
    doubtful: Collection[int],
) -> tuple[frozenset[int], str]:
    """Return the wrong brokers, and the reason in words."""
    confirmed = [group for group in groups if any(right.get(each) for each in group.brokers)]
    refuted = [group for group in groups if any(right.get(each) is False for each in group.brokers)]
    if confirmed and refuted and not any(group in refuted for group in confirmed):
        return _others(groups, confirmed), f"what clients were told is on {_listed(confirmed)}"
    whole = [group for group in groups if group.is_whole]
    if len(whole) == 1:
        verb = "is" if len(whole[0].brokers) == 1 else "are"
        return _others(groups, whole), f"of {_listed(groups)} only {_listed(whole)} {verb} whole"
    trusted = [group for group in whole if not all(each in doubtful for each in group.brokers)]
    if len(trusted) == 1:
        others = [group for group in whole if group not in trusted]
        verb = "has" if sum(len(group.brokers) for group in others) == 1 else "have"
        said = f"{_listed(others)} {verb} other damage in this log, {_listed(trusted)} "
        said += "has none" if len(trusted[0].brokers) == 1 else "have none"
        return _others(groups, trusted), said
    # Several groups are whole: the damaged ones are wrong, and have no vote on which is right.
    members = [group for group in whole if any(in_sync[each] for each in group.brokers)]
    if members:
        largest = whole[0]
        voters = sum(len(group.brokers) for group in whole)
        has_majority = 2 * len(largest.brokers) > voters and largest in members
        is_outvoted = len(largest.brokers) > len(members[0].brokers)
        if has_majority or (len(members) == 1 and not is_outvoted):
            right_ones = [largest] if has_majority else members
            rest = sorted(_others(groups, right_ones))
            verb = "is" if len(members[0].brokers) == 1 else "are"
            in_sync_one = f"{_listed(members)} {verb} in sync"
            why = _agreeing(right_ones[0]) if has_majority else in_sync_one
            return frozenset(rest), f"{why}, {_joined(rest)} {_differ(rest)}"
    every = ", ".join(map(_agreeing, groups))
    return _others(groups, []), f"{every}, and which is right cannot be told"


def _others(groups: Sequence[_Group], right: Sequence[_Group]) -> frozenset[int]:
    return frozenset(each for group in groups if group not in right for each in group.brokers)


def _agreeing(group: _Group) -> str:
    return f"{_joined(group.brokers)} {'agree' if len(group.brokers) > 1 else 'differs'}"


def _differ(brokers: Sequence[int] | frozenset[int]) -> str:
    return "differ" if len(brokers) > 1 else "differs"


def _listed(groups: Sequence[_Group]) -> str:
    return _joined(sorted(each for group in groups for each in group.brokers))


def _joined(brokers: Sequence[int]) -> str:
    """Return the list in words: `1`, `1 and 2`, `1, 2 and 3`."""
    *front, last = map(str, brokers)
    return f"{', '.join(front)} and {last}" if front else last

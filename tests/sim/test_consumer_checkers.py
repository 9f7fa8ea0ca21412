"""The checkers of groups of the consumer protocol, on made-up histories: each finds the fault in
one."""

import pytest

from minibroker.broker.groups.consumer_records import (
    NO_PARTITIONS,
    ConsumerKey,
    ConsumerRecord,
    CurrentAssignment,
    GroupEpoch,
    MemberState,
    MemberTarget,
    TargetEpoch,
    TopicIdPartition,
)
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.types import TopicPartition
from tests.sim.checkers import Violation
from tests.sim.consumer_checkers import (
    EpochCommits,
    NoneRemoved,
    OneHolder,
    RisingEpochs,
    StaticKeeps,
    judge_consumer_log,
)
from tests.sim.group_events import BeatAnswered, BeatSent, CommitAnswered, CommitSent

TOPIC_ID = b"t" * 16
P, Q = TopicIdPartition(TOPIC_ID, 0), TopicIdPartition(TOPIC_ID, 1)
PLACE = TopicPartition("t", 0)
ONLY_P, ONLY_Q, BOTH = frozenset({P}), frozenset({Q}), frozenset({P, Q})
FENCED = ErrorCode.FENCED_MEMBER_EPOCH


class Story:
    """Events for a checker, one every second."""

    def __init__(self, checker):
        self.checker = checker
        self._now = 0.0
        self._number = 0

    def beat(self, who, asked, epoch, places=None, *, owned=None, error=0, instance=None):
        """A heartbeat and its answer."""
        self._number += 1
        self.tell(BeatSent(who, self._number, instance, asked, owned))
        self.tell(BeatAnswered(who, self._number, error, epoch, places))

    def commit(self, who, epoch, *, error=0):
        """A commit and its answer."""
        self._number += 1
        self.tell(CommitSent(who, self._number, epoch, {PLACE: 1}))
        self.tell(CommitAnswered(who, self._number, {PLACE: error}))

    def tell(self, event):
        """It happens."""
        self._now += 1
        self.checker.look(self._now, event)


def hand_over(story):
    """One member has both partitions, and gives one of them to another."""
    story.beat("a", 0, 1, BOTH, owned=NO_PARTITIONS)
    story.beat("b", 0, 2, NO_PARTITIONS, owned=NO_PARTITIONS)
    story.beat("a", 1, 1, ONLY_Q)
    story.commit("a", 1)
    story.beat("a", 1, 2, owned=ONLY_Q)
    story.beat("b", 2, 2, ONLY_P)
    story.commit("b", 2)
    story.commit("a", 2)


@pytest.mark.parametrize(
    "make", [OneHolder, RisingEpochs, EpochCommits, NoneRemoved, lambda: StaticKeeps(20.0)]
)
def test_a_sound_history_passes(make):
    """Revoke before assign, commit in the newest epoch: no checker minds."""
    hand_over(Story(make()))


@pytest.mark.parametrize("what", ["keep", "commit"])
def test_a_partition_that_two_members_have_is_found(what):
    """The first had not given it up, and is still a member."""
    story = Story(OneHolder())
    story.beat("a", 0, 1, BOTH, owned=NO_PARTITIONS)
    story.beat("b", 0, 2, ONLY_P, owned=NO_PARTITIONS)
    go_on = {"keep": lambda: story.beat("a", 1, 2, ONLY_Q), "commit": lambda: story.commit("a", 1)}
    with pytest.raises(Violation, match=f"a may {what}"):
        go_on[what]()


def test_a_member_that_was_removed_may_still_believe_that_it_has_a_partition():
    """What it sends is refused."""
    story = Story(OneHolder())
    story.beat("a", 0, 1, BOTH, owned=NO_PARTITIONS)
    story.beat("b", 0, 2, BOTH, owned=NO_PARTITIONS)
    story.commit("a", 1, error=ErrorCode.UNKNOWN_MEMBER_ID)
    story.beat("a", 1, 0, error=FENCED)
    story.beat("a", 0, 3, NO_PARTITIONS, owned=NO_PARTITIONS)


def test_an_answer_may_be_old():
    """A member that stood still receives what it was given before the other one."""
    story = Story(OneHolder())
    story.tell(BeatSent("a", 100, None, 0, NO_PARTITIONS))
    story.beat("b", 0, 2, ONLY_P, owned=NO_PARTITIONS)
    story.tell(BeatAnswered("a", 100, 0, 1, ONLY_P))
    story.beat("b", 2, 2)
    story.commit("a", 1, error=ErrorCode.UNKNOWN_MEMBER_ID)


def test_an_epoch_that_goes_back_is_found():
    """A member's own, and that of one that joins."""
    story = Story(RisingEpochs())
    story.beat("a", 0, 5, BOTH)
    with pytest.raises(Violation, match="epoch 4 after 5"):
        story.beat("a", 5, 4)
    with pytest.raises(Violation, match="epoch 3 after 5"):
        story.beat("b", 0, 3, NO_PARTITIONS)


def test_a_commit_of_a_fenced_member_is_found():
    """And one in an epoch that is over."""
    story = Story(EpochCommits())
    story.beat("a", 0, 1, BOTH)
    story.beat("a", 1, 2)
    story.commit("a", 1, error=ErrorCode.STALE_MEMBER_EPOCH)
    with pytest.raises(Violation, match="epoch 1, its epoch is 2"):
        story.commit("a", 1)
    story.beat("a", 2, 0, error=FENCED)
    with pytest.raises(Violation, match="a may commit"):
        story.commit("a", 2)


def test_a_static_member_that_loses_its_assignment_is_found():
    """To another member, or at its return; after a session, or in a later epoch it may."""
    story = Story(StaticKeeps(20.0))
    story.beat("a", 0, 1, BOTH, instance="i")
    story.beat("a", -2, -2, instance="i")
    with pytest.raises(Violation, match="which is away"):
        story.beat("b", 0, 1, ONLY_P)
    with pytest.raises(Violation, match="does not get"):
        story.beat("a2", 0, 1, ONLY_Q, instance="i")
    story.beat("a2", -2, -2, instance="i")
    story.beat("a3", 0, 2, NO_PARTITIONS, instance="i")


def test_a_static_member_is_found_to_return():
    """It is counted, so that a scenario can tell that it had any."""
    story = Story(StaticKeeps(20.0))
    story.beat("a", 0, 1, BOTH, instance="i")
    story.beat("a", -2, -2, instance="i")
    story.beat("a2", 0, 1, BOTH, instance="i")
    assert story.checker.returned == 1


def test_a_member_that_is_removed_without_a_reason_is_found():
    """Unless so many answers were lost that its epoch is too old."""
    story = Story(NoneRemoved())
    story.beat("a", 0, 1, BOTH)
    with pytest.raises(Violation, match="a is removed"):
        story.beat("a", 1, 0, error=FENCED)
    for number in range(100, 103):
        story.tell(BeatSent("b", number, None, 1, None))
    story.beat("b", 1, 0, error=FENCED)


def key(kind, name=""):
    """Of a record of the group."""
    return ConsumerKey(kind, "g", name)


TARGET, CURRENT = ConsumerRecord.MEMBER_TARGET, ConsumerRecord.CURRENT
BEGUN = [
    (key(ConsumerRecord.GROUP), GroupEpoch(2)),
    (key(TARGET, "a"), MemberTarget(ONLY_P)),
    (key(ConsumerRecord.TARGET), TargetEpoch(2)),
]


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ((key(ConsumerRecord.GROUP), GroupEpoch(1)), "has 1 behind 2"),
        ((key(ConsumerRecord.TARGET), TargetEpoch(1)), "has 1 behind 2"),
        ((key(CURRENT, "a"), CurrentAssignment(2, 1)), "is done with"),
        (
            (
                key(CURRENT, "b"),
                CurrentAssignment(1, 0, MemberState.UNREVOKED, NO_PARTITIONS, ONLY_P),
            ),
            "is stored for a and for b",
        ),
    ],
)
def test_what_a_log_may_not_hold_is_found(record, why):
    """Epochs that go back, a partition of two members, a member that lacks what it should have."""
    sound = [*BEGUN, (key(CURRENT, "a"), CurrentAssignment(2, 1, assigned=ONLY_P))]
    judge_consumer_log([*sound, (key(CURRENT, "a"), None), (key(CURRENT, "b"), NEW)])
    with pytest.raises(Violation, match=why):
        judge_consumer_log([*sound, record])


NEW = CurrentAssignment(0)

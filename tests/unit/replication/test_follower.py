"""How one answer of a leader changes a follower's log (A7, A11 to A13, rows FOL-01 to FOL-15)."""

import errno
from dataclasses import replace

import pytest

from minibroker.broker.config import TopicConfig, load
from minibroker.broker.errors import Refused
from minibroker.broker.log.admission import check_batches
from minibroker.broker.replication.follower import Follower, FollowerOutcome, LeaderAnswer, Next
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.control import PartitionState
from minibroker.protocol.messages.fetch import PartitionFetched
from minibroker.protocol.records.batch import InvalidBatch
from tests.unit.log.workbench import NOW, Bench, stored

STRICT: TopicConfig = load().config.for_topic()
UNCLEAN: TopicConfig = load().config.for_topic({"unclean.leader.election.enable": "true"})
EPOCH = 7


def following(bench: Bench, high_watermark: int = 0) -> Follower:
    """The role of broker 2, which copies from broker 1."""
    state = PartitionState("t", b"i" * 16, 0, 1, EPOCH, 9, (1, 2), (1, 2))
    return Follower(state, high_watermark)


def answer(bench: Bench, records: bytes = b"", **fields) -> LeaderAnswer:
    """An answer to what is asked for now."""
    fetched = PartitionFetched("t", 0, records=records, **{"log_start": 0, **fields})
    try:
        batches = check_batches(memoryview(records))
    except InvalidBatch as invalid:
        batches = invalid
    return LeaderAnswer(bench.log.log_end, fetched, batches)


def take(bench: Bench, role: Follower, records: bytes = b"", **fields) -> FollowerOutcome:
    """Apply an answer to what is asked for now."""
    return role.handle_answer(bench.log, answer(bench, records, **fields), STRICT, NOW)


def written(*spans: tuple[int, int]) -> Bench:
    """A log of one-record batches: (epoch, count) after (epoch, count)."""
    bench = Bench()
    for epoch, count in spans:
        for _ in range(count):
            bench.append(epoch=epoch)
    return bench


def diverge(bench: Bench, role: Follower, epoch: int, end: int, settings=STRICT) -> FollowerOutcome:
    """The leader says that its largest epoch up to ours is this, and where it ended."""
    told = answer(bench, diverging_epoch=epoch, diverging_end=end)
    return role.handle_answer(bench.log, told, settings, NOW)


def test_the_leaders_bytes_are_appended():
    """Offsets, epochs and producers as they are, and the epochs are known then (FOL-01)."""
    bench = Bench()
    records = stored(0, 2, epoch=3, producer=(5, 0, 0)) + stored(2, epoch=4, producer=(5, 0, 2))
    assert take(bench, following(bench), records) == FollowerOutcome(Next.FETCH, size=len(records))
    (part,) = bench.log.read(0, 1 << 20, bench.log.log_end)
    assert part.read() == records
    assert bench.log.epochs.entries == ((3, 0), (4, 2))
    assert bench.log.producers.get(5).last_sequence == 2


@pytest.mark.parametrize(
    ("theirs", "ours"), [(0, 0), (2, 2), (3, 3), (9, 3), (-1, 0)], ids=lambda value: str(value)
)
def test_the_high_watermark_follows_as_far_as_the_log_goes(theirs, ours):
    """min(leader's, own log end), after the append and on empty answers too (FOL-02, A7)."""
    bench = Bench()
    role = following(bench)
    take(bench, role, stored(0, 3), high_watermark=0)
    assert role.high_watermark == 0
    take(bench, role, high_watermark=theirs)
    assert role.high_watermark == ours


def test_the_high_watermark_may_fall():
    """A new leader may not know yet what was committed (A7)."""
    bench = written((0, 5))
    role = following(bench, high_watermark=5)
    take(bench, role, high_watermark=3)
    assert (role.high_watermark, role.leader_high_watermark, role.lag(bench.log)) == (3, 3, 0)
    take(bench, role, high_watermark=8)
    assert (role.high_watermark, role.lag(bench.log)) == (5, 3)


def test_the_log_start_follows_upwards():
    """What the leader has deleted is not read here either, and the epochs say so (FOL-02)."""
    bench = written((0, 2), (1, 3))
    role = following(bench)
    take(bench, role, high_watermark=5, log_start=3)
    assert bench.log.log_start == 3
    assert bench.log.epochs.entries == ((1, 3),)
    take(bench, role, high_watermark=5, log_start=1)
    assert bench.log.log_start == 3


def test_a_log_start_above_the_high_watermark_breaks_the_rules():
    """It would hide records that are not committed; the partition has failed (A7)."""
    bench = written((0, 5))
    role = following(bench)
    assert take(bench, role, high_watermark=3, log_start=4).next is Next.STOP
    assert bench.log.log_start == 0
    assert "log starts at 4" in role.failure


def test_an_answer_for_another_offset_breaks_the_rules():
    """Nothing is appended, and the partition has failed (FOL-03)."""
    bench = written((0, 2))
    role = following(bench)
    told = answer(bench, stored(2))._replace(asked_offset=1)
    assert role.handle_answer(bench.log, told, STRICT, NOW).next is Next.STOP
    assert (bench.log.log_end, role.reason) == (2, role.failure)


def test_records_below_the_log_end_break_the_rules():
    """A batch that begins below the end cannot continue the log (FOL-15, LOG-06)."""
    bench = written((0, 2))
    role = following(bench)
    assert take(bench, role, stored(1, 2)).next is Next.STOP
    assert bench.log.log_end == 2


def test_extra_records_of_an_old_epoch_are_cut():
    """By the epoch's end at the leader, whatever the own high watermark below it (FOL-05)."""
    bench = written((0, 5))
    role = following(bench, high_watermark=2)
    assert diverge(bench, role, 0, 3) == FollowerOutcome(Next.FETCH)
    assert (bench.log.log_end, role.last_fetched_epoch(bench.log), role.high_watermark) == (3, 0, 2)


def test_a_cut_goes_back_to_the_largest_epoch_that_both_may_have():
    """Without the leader's epoch here: to the end of the next smaller one, and ask again (A11)."""
    bench = written((1, 3), (3, 3), (4, 2))
    role = following(bench)
    assert role.last_fetched_epoch(bench.log) == 4
    assert diverge(bench, role, 2, 1).next is Next.FETCH
    assert (bench.log.log_end, role.last_fetched_epoch(bench.log)) == (3, 1)
    assert diverge(bench, role, 1, 2).next is Next.FETCH
    assert bench.log.log_end == 2


def test_an_epoch_that_both_have_ends_at_the_smaller_end():
    """min(own end of it, leader's end of it) (A11)."""
    for theirs, end in ((4, 4), (5, 5), (9, 5)):
        bench = written((1, 5), (2, 2))
        assert diverge(bench, following(bench), 1, theirs).next is Next.FETCH
        assert bench.log.log_end == end


def test_an_epoch_older_than_all_here_takes_everything():
    """Nothing is common then (A9, A11)."""
    bench = written((5, 3))
    assert diverge(bench, following(bench), 2, 8).next is Next.FETCH
    assert bench.log.log_end == 0


def test_the_epoch_of_a_leadership_that_wrote_nothing_is_forgotten():
    """The leader does not know it; no record is cut for that (A13)."""
    bench = written((1, 3))
    bench.log.assign_epoch(2, 3)
    role = following(bench, high_watermark=3)
    assert role.last_fetched_epoch(bench.log) == 2
    assert diverge(bench, role, 1, 3).next is Next.FETCH
    assert (bench.log.log_end, role.last_fetched_epoch(bench.log)) == (3, 1)


def test_a_cut_below_the_high_watermark_is_refused():
    """The log stays as it is, the partition has failed and says why (A11, FOL-15)."""
    bench = written((0, 5))
    role = following(bench, high_watermark=4)
    assert diverge(bench, role, 0, 3).next is Next.STOP
    assert (bench.log.log_end, role.high_watermark) == (5, 4)
    assert "committed below 4" in role.failure


def test_unclean_election_allows_a_cut_below_the_high_watermark():
    """Then the high watermark falls with the log (A11, A13)."""
    bench = written((0, 5))
    role = following(bench, high_watermark=4)
    assert diverge(bench, role, 0, 3, UNCLEAN).next is Next.FETCH
    assert (bench.log.log_end, role.high_watermark, role.failure) == (3, 3, "")


@pytest.mark.parametrize(("unclean_epoch", "is_cut"), [(-1, False), (1, False), (2, True)])
def test_a_log_from_before_an_unclean_election_may_be_cut(unclean_epoch, is_cut):
    """By command a leader was elected that lacks committed records; the topic allows nothing. A log
    that has records of that leader, or of a later one, has lost nothing by it."""
    bench = written((0, 3), (1, 2))
    state = PartitionState("t", b"i" * 16, 0, 1, EPOCH, 9, (1, 2), (1, 2))
    role = Follower(replace(state, unclean_epoch=unclean_epoch), 4)
    assert diverge(bench, role, 1, 4, UNCLEAN).next is Next.FETCH
    assert diverge(bench, role, 0, 2).next is (Next.FETCH if is_cut else Next.STOP)
    assert bench.log.log_end == (2 if is_cut else 4)


@pytest.mark.parametrize(("epoch", "end"), [(0, -1), (-1, 3), (-2, 3), (0, -5)])
def test_an_undefined_end_cuts_nothing(epoch, end):
    """Back off and ask again (FOL-08)."""
    bench = written((0, 5))
    role = following(bench)
    assert diverge(bench, role, epoch, end).next is Next.BACK_OFF
    assert (bench.log.log_end, role.failure) == (5, "")


def test_a_divergence_that_is_none_backs_off():
    """A leader that repeats it is not asked in a loop."""
    bench = written((0, 5))
    assert diverge(bench, following(bench), 0, 9).next is Next.BACK_OFF


def test_of_a_diverging_answer_only_the_divergence_counts():
    """Its records, high watermark and log start do not (FOL-09)."""
    bench = written((0, 5))
    role = following(bench, high_watermark=1)
    outcome = take(
        bench, role, stored(5), high_watermark=3, log_start=2, diverging_epoch=0, diverging_end=4
    )
    assert outcome == FollowerOutcome(Next.FETCH)
    assert (bench.log.log_end, bench.log.log_start, role.high_watermark) == (4, 0, 1)


def test_a_fenced_epoch_fails_until_the_next_role():
    """The leader is in a later epoch than this role (FOL-11)."""
    bench = written((0, 2))
    role = following(bench)
    assert take(bench, role, error=ErrorCode.FENCED_LEADER_EPOCH).next is Next.STOP
    assert role.failure


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        4711,
    ],
)
def test_other_errors_back_off(code):
    """The role is kept, and asked again later, also for a code from the future (FOL-12)."""
    bench = written((0, 2))
    role = following(bench)
    assert take(bench, role, error=code).next is Next.BACK_OFF
    assert role.reason == "broker 1 leads it"


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        (stored(2)[:-1] + b"?", "checksum"),
        (stored(2, epoch=EPOCH + 1), "later leader epoch"),
        (stored(2, epoch=1), "leader epoch 1 after 2"),
        (b"x" * 80, "no batches"),
    ],
)
def test_corrupt_records_back_off(records, reason):
    """Nothing is appended, and it is asked again (FOL-14)."""
    bench = written((2, 2))
    role = following(bench)
    outcome = take(bench, role, records, high_watermark=9)
    assert outcome.next is Next.BACK_OFF
    assert reason in outcome.reason
    assert (bench.log.log_end, role.high_watermark, role.failure) == (2, 0, "")


def test_an_offset_that_the_leader_does_not_have_asks_for_its_range():
    """Nothing is done before the range is known (A12)."""
    bench = written((0, 3))
    assert take(bench, following(bench), error=ErrorCode.OFFSET_OUT_OF_RANGE).next is Next.ASK_RANGE


def test_a_leader_that_ends_before_us():
    """Its end is where ours is cut, not below the high watermark (FOL-13, A12)."""
    bench = written((0, 3))
    assert following(bench).handle_range(bench.log, (0, 0), STRICT, NOW).next is Next.FETCH
    assert bench.log.log_end == 0
    bench = written((0, 3))
    assert following(bench, 2).handle_range(bench.log, (0, 1), STRICT, NOW).next is Next.STOP
    assert bench.log.log_end == 3


def test_a_leader_that_starts_behind_our_end():
    """All is dropped, and begins again at its start with nothing to compare (FOL-13, A12)."""
    bench = written((0, 1))
    role = following(bench, high_watermark=1)
    assert role.handle_range(bench.log, (2, 9), STRICT, NOW) == FollowerOutcome(Next.FETCH)
    assert (bench.log.log_start, bench.log.log_end, role.high_watermark) == (2, 2, 2)
    assert role.last_fetched_epoch(bench.log) == -1
    bench.reopen_killed(log_start=2)
    assert role.last_fetched_epoch(bench.log) == -1


@pytest.mark.parametrize("theirs", [(0, 3), (3, 3), (1, 9)])
def test_a_leader_that_has_our_end_after_all(theirs):
    """The log is kept, and asked for again after a moment (FOL-13)."""
    bench = written((0, 3))
    assert following(bench).handle_range(bench.log, theirs, STRICT, NOW).next is Next.BACK_OFF
    assert (bench.log.log_start, bench.log.log_end) == (0, 3)


@pytest.mark.parametrize("theirs", [(-1, -1), (5, 4), (0, -1)])
def test_a_range_that_is_none(theirs):
    """Nothing is cut for it."""
    bench = written((0, 3))
    assert following(bench).handle_range(bench.log, theirs, STRICT, NOW).next is Next.BACK_OFF
    assert bench.log.log_end == 3


def test_a_full_disk_backs_off_and_goes_on():
    """What came before it is kept, the rest is copied when there is room."""
    bench = Bench()
    role = following(bench)
    first, second = stored(0), stored(1, value=b"v" * 5000)
    bench.files.space_bytes = 1 << 40
    used = bench.files.space_bytes - bench.files.room()
    bench.files.space_bytes = used + 1000
    assert take(bench, role, first + second).next is Next.BACK_OFF
    assert bench.log.log_end == 1
    bench.files.space_bytes = 1 << 40
    assert take(bench, role, second, high_watermark=2) == FollowerOutcome(
        Next.FETCH, size=len(second)
    )
    assert role.high_watermark == 2


def test_another_error_of_the_disk_comes_out():
    """It ends the broker (docs/architecture.md, "What stops what")."""
    bench = Bench()
    bench.files.fail("append")
    with pytest.raises(OSError, match="Input/output"):
        take(bench, following(bench), stored(0))


@pytest.mark.parametrize("spans", [(), ((3, 4),)])
def test_a_follower_starts_inside_a_batch_of_the_leader(spans):
    """FOL-17: records were deleted up to the middle of a batch, and beyond our end. We start there,
    and take the batch, of which nothing below the log start is read."""
    bench = written(*spans)
    role = following(bench)
    assert take(bench, role, error=ErrorCode.OFFSET_OUT_OF_RANGE).next is Next.ASK_RANGE
    assert role.handle_range(bench.log, (12, 20), STRICT, NOW).next is Next.FETCH
    records = stored(10, 5, epoch=3) + stored(15, 5, epoch=3)
    told = {"log_start": 12, "high_watermark": 20}
    assert take(bench, role, records, **told) == FollowerOutcome(Next.FETCH, size=len(records))
    log = bench.log
    assert (log.log_start, log.log_end, role.high_watermark) == (12, 20, 20)
    assert bench.offsets() == [10, 15]
    assert log.epochs.entries == ((3, 12),)
    with pytest.raises(Refused, match="offset 11"):
        log.read(11, 1000, 20)
    bench.reopen_clean()
    assert (bench.log.log_end, bench.bases()) == (20, [10])


def test_a_disk_without_room_leaves_the_log_at_its_start():
    """FOL-17: what could not be appended is asked for again."""
    bench = Bench()
    role = following(bench)
    role.handle_range(bench.log, (12, 20), STRICT, NOW)
    bench.files.fail("append", number=errno.ENOSPC)
    told = {"log_start": 12, "high_watermark": 20}
    assert take(bench, role, stored(10, 5, epoch=3), **told).next is Next.BACK_OFF
    assert (bench.log.log_start, bench.log.log_end) == (12, 12)
    assert take(bench, role, stored(10, 5, epoch=3), **told).next is Next.FETCH
    assert (bench.log.log_start, bench.log.log_end) == (12, 15)


def test_a_follower_leaves_half_of_the_space_that_is_kept():
    """It copies on where a leader refuses records; below that it deletes what the leader has
    deleted, to win room."""
    bench = Bench()
    role = following(bench)
    bench.location.room.observe(5, 200)
    records = stored(0, 5, epoch=3)
    assert take(bench, role, records, high_watermark=5).next is Next.FETCH
    bench.location.room.observe(4, 200)
    refused = take(bench, role, stored(5, 5, epoch=3), log_start=9, high_watermark=9)
    assert refused.next is Next.BACK_OFF
    assert "4 bytes are free on the disk" in refused.reason
    assert (bench.log.log_start, bench.log.log_end) == (5, 5)


def test_only_an_empty_log_begins_below_its_start():
    """FOL-03: a log that has records takes no batch that begins below its end."""
    bench = written((3, 4))
    bench.log.raise_start(2)
    assert take(bench, following(bench), stored(3, 5, epoch=3)).next is Next.STOP
    empty = written((3, 4))
    empty.log.raise_start(4)
    assert take(empty, following(empty), stored(2, 2, epoch=3)).next is Next.STOP


def test_a_log_start_at_the_end_is_taken_over():
    """Everything was deleted: the log is empty, and its segments go with the next retention."""
    bench = written((3, 4))
    role = following(bench)
    assert take(bench, role, log_start=4, high_watermark=4) == FollowerOutcome(Next.FETCH)
    assert (bench.log.log_start, bench.log.log_end, role.high_watermark) == (4, 4, 4)
    without_pause(bench.log.apply_retention(role.high_watermark, NOW))
    assert bench.bases() == [4]
    records = stored(4, epoch=3)
    assert take(bench, role, records, log_start=4, high_watermark=4).size == len(records)

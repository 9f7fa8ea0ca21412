"""The checkers of transactions, on made-up histories and logs: each finds the fault in one."""

from contextlib import nullcontext

import pytest

from minibroker.protocol.messages.fetch import AbortedTransaction
from minibroker.protocol.records.batch import (
    TRANSACTIONAL,
    ProducerStamp,
    read_header,
    stamp,
    write_header,
)
from minibroker.protocol.records.control import EndMarker, encode_end_marker
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.types import TopicPartition
from tests.sim.checkers import Violation
from tests.sim.transaction_checkers import (
    Attempts,
    CommittedOffsets,
    Outcome,
    Sessions,
    Shown,
    Source,
    Views,
    Written,
    check_fenced,
    decode_written,
    judge_copies,
    judge_table,
)
from tests.sim.transaction_logs import (
    Aborted,
    Belief,
    Ended,
    RightMarkers,
    SoundBeliefs,
    ended,
    read_committed,
    replay,
)

P, Q = TopicPartition("out", 0), TopicPartition("out", 1)
INPUT = TopicPartition("in", 0)


def value(attempt: str, offset: int, partition: int = 0) -> bytes:
    return Written(attempt, Source(partition, offset)).encode()


def attempt_of(attempts: Attempts, name: str, outcome: Outcome, *places: TopicPartition):
    """One that wrote input record 0, 1, ... to each of these partitions."""
    attempt = attempts.begin(name)
    attempt.records = {(place, value(name, offset)) for offset, place in enumerate(places)}
    attempt.offsets = {INPUT: len(places)}
    attempt.outcome = outcome
    return attempt


def test_a_value_says_who_wrote_it_and_of_what():
    """A record leads to its transaction and to the record that was read."""
    assert decode_written(value("a.0/7", 12, 3)) == Written("a.0/7", Source(3, 12))


# -- atomicity


@pytest.mark.parametrize(
    ("outcome", "count"),
    [
        (Outcome.COMMITTED, 2),
        (Outcome.IN_DOUBT, 2),
        (Outcome.IN_DOUBT, 0),
        (Outcome.NOT_ASKED, 0),
        (Outcome.REFUSED, 0),
    ],
)
def test_all_or_none_may_be_visible(outcome, count):
    """In doubt means either; a committed transaction is visible, an aborted one is not."""
    attempts = Attempts()
    attempt = attempt_of(attempts, "a", outcome, P, Q)
    attempts.judge(sorted(attempt.records)[:count])


@pytest.mark.parametrize(
    ("outcome", "count", "match"),
    [
        (Outcome.COMMITTED, 1, "was committed, and"),
        (Outcome.COMMITTED, 0, "was committed, and"),
        (Outcome.IN_DOUBT, 1, "visible in part"),
        (Outcome.REFUSED, 2, "was told that it is aborted"),
    ],
)
def test_a_part_is_found(outcome, count, match):
    """Some of the records without the others."""
    attempts = Attempts()
    attempt = attempt_of(attempts, "a", outcome, P, Q)
    with pytest.raises(Violation, match=match):
        attempts.judge(sorted(attempt.records)[:count])


@pytest.mark.parametrize("outcome", [Outcome.NOT_ASKED, Outcome.REFUSED])
def test_a_record_of_an_open_or_aborted_transaction_is_found(outcome):
    """It is found when it is shown."""
    attempts = Attempts()
    attempt_of(attempts, "a", outcome, P)
    with pytest.raises(Violation, match=outcome.value):
        attempts.check_shown(P, value("a", 0))


def test_a_record_that_was_not_written_there_is_found():
    """In another partition, or of no transaction."""
    attempts = Attempts()
    attempt_of(attempts, "a", Outcome.COMMITTED, P)
    for place, shown in ((Q, value("a", 0)), (P, value("b", 0))):
        with pytest.raises(Violation, match="no process wrote"):
            attempts.check_shown(place, shown)


# -- input transformed once


def test_each_input_record_is_copied_once():
    """Whatever the transactions and the order."""
    judge_copies([value("a", 0), value("a", 1), value("b", 0, 1)], {0: 2, 1: 1})
    judge_copies([], {0: 0})


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ([value("a", 0), value("b", 0)], "twice .*partition=0, offset=0"),
        ([], "not at all .*partition=0, offset=0"),
        ([value("a", 0), value("a", 1)], "never there .*partition=0, offset=1"),
    ],
)
def test_a_wrong_copy_is_found(values, match):
    """Twice, not at all, or of what is not there."""
    with pytest.raises(Violation, match=match):
        judge_copies(values, {0: 1})


# -- the compacted topic


def test_the_newest_committed_record_of_a_key_is_visible():
    """Older ones may be visible or not."""
    attempts = Attempts()
    first, second = (attempt_of(attempts, name, Outcome.COMMITTED, P) for name in "ab")
    old, new = Shown(3, value("a", 0), b"k"), Shown(7, value("b", 1), b"k")
    first.keyed[b"k"], second.keyed[b"k"] = old, new
    judge_table([first, second], [old, new])
    judge_table([second, first], [new])
    with pytest.raises(Violation, match="newest visible"):
        judge_table([first, second], [old])
    with pytest.raises(Violation, match="newest visible"):
        judge_table([first, second], [])
    with pytest.raises(Violation, match="its transaction is not"):
        judge_table([first], [old, new])


# -- fencing


def test_a_newer_epoch_fences_the_older_ones():
    """Of the same transactional id only."""
    sessions = Sessions()
    sessions.begin("id", 7, 0, "a")
    assert not sessions.is_fenced("id", 7, 0)
    sessions.begin("id", 7, 1, "b")
    sessions.begin("other", 8, 0, "c")
    assert sessions.is_fenced("id", 7, 0)
    assert not sessions.is_fenced("id", 7, 1)
    check_fenced("END_TXN", was_fenced=False)
    with pytest.raises(Violation, match="END_TXN was accepted"):
        check_fenced("END_TXN", was_fenced=True)


def test_an_answer_that_is_heard_late_fences_no_process():
    """The newest epoch stays the newest."""
    sessions = Sessions()
    sessions.begin("id", 7, 4, "b")
    sessions.begin("id", 7, 3, "a")
    assert not sessions.is_fenced("id", 7, 4)


def test_an_epoch_that_two_processes_have_is_found():
    """One process may hear of its epoch twice."""
    sessions = Sessions()
    sessions.begin("id", 7, 1, "a")
    sessions.begin("id", 7, 1, "a")
    with pytest.raises(Violation, match="was given to a, and to b"):
        sessions.begin("id", 7, 1, "b")


# -- isolation


def views_of(*records: Shown) -> Views:
    """As one reader was shown them, up to offset 10."""
    attempts = Attempts()
    attempt = attempt_of(attempts, "a", Outcome.COMMITTED)
    attempt.records = {(P, value("a", number)) for number in range(10)}
    views = Views(attempts)
    views.note("first", P, 0, 10, records)
    return views


ONE, TWO = Shown(2, value("a", 0)), Shown(5, value("a", 1))


def test_readers_see_the_same():
    """Wherever they begin and stop."""
    views = views_of(ONE, TWO)
    views.note("second", P, 0, 4, [ONE])
    views.note("second", P, 4, 12, [TWO, Shown(11, value("a", 2))])
    assert [one.offset for one in views.records[P]] == [2, 5, 11]
    views.note("third", P, 3, 12, [TWO, Shown(11, value("a", 2))])


@pytest.mark.parametrize(
    ("start", "end", "shown", "match"),
    [
        (0, 10, [ONE], "in another way"),
        (0, 10, [ONE, TWO, Shown(7, value("a", 3))], "in another way"),
        (0, 10, [ONE, Shown(5, value("a", 4))], "in another way"),
        (0, 10, [TWO, ONE], "from 0 on as"),
        (3, 10, [ONE, TWO], "from 3 on as"),
        (11, 12, [], "begins at 11"),
        (10, 11, [Shown(10, value("b", 0))], "no process wrote"),
    ],
)
def test_another_view_is_found(start, end, shown, match):
    """Less, more, something else, another order, or a gap."""
    views = views_of(ONE, TWO)
    with pytest.raises(Violation, match=match):
        views.note("second", P, start, end, shown)


# -- offsets


def test_offsets_count_from_the_end_of_their_transaction_on():
    """For those that ask for stable offsets."""
    attempts = Attempts()
    offsets = CommittedOffsets(attempts)
    offsets.note_told("onlooker", {INPUT: -1}, {}, is_stable=True)
    attempt = attempt_of(attempts, "a", Outcome.IN_DOUBT, P)
    offsets.note_told("onlooker", {INPUT: 1}, {}, is_stable=False)
    assert offsets.floors == {}
    attempt.outcome = Outcome.COMMITTED
    offsets.note_committed(attempt)
    floors = dict(offsets.floors)
    assert floors == {INPUT: 1}
    offsets.note_told("onlooker", {INPUT: -1}, floors, is_stable=False)
    with pytest.raises(Violation, match="committed at 1, onlooker is told -1"):
        offsets.note_told("onlooker", {INPUT: -1}, floors, is_stable=True)


def test_a_stable_answer_is_the_floor_of_later_ones():
    """A transaction in doubt was committed, then."""
    attempts = Attempts()
    attempt_of(attempts, "a", Outcome.IN_DOUBT, P)
    offsets = CommittedOffsets(attempts)
    offsets.note_told("onlooker", {INPUT: 1}, {}, is_stable=True)
    assert offsets.floors == {INPUT: 1}


def test_offsets_of_an_open_transaction_are_found():
    """So are those of no transaction."""
    attempts = Attempts()
    attempt_of(attempts, "a", Outcome.NOT_ASKED, P)
    for told in (1, 2):
        with pytest.raises(Violation, match="no process has asked to commit"):
            CommittedOffsets(attempts).note_told("who", {INPUT: told}, {}, is_stable=False)


# -- logs


def log_of(*batches: bytearray) -> bytes:
    """Their bytes, with offsets from 0 on."""
    offset, parts = 0, []
    for batch in batches:
        stamp(batch, offset, 0)
        offset = read_header(batch).next_offset
        parts.append(bytes(batch))
    return b"".join(parts)


def records(producer_id: int, *values: bytes, is_transactional: bool = True) -> bytearray:
    batch = encode_batch(
        [(0, None, each, ()) for each in values], producer=ProducerStamp(producer_id, 0, 0)
    )
    if is_transactional:
        write_header(batch, read_header(batch)._replace(attributes=TRANSACTIONAL))
    return batch


def marker(producer_id: int, *, is_commit: bool) -> bytearray:
    return encode_end_marker(EndMarker(is_commit, 0), producer_id, 0, 0)


ABORTED = Aborted(8, 1, 4)
LOG = log_of(
    records(7, b"a"),
    records(8, b"b"),
    records(9, b"c", is_transactional=False),
    marker(7, is_commit=True),
    marker(8, is_commit=False),
    records(8, b"d"),
    marker(8, is_commit=True),
    records(7, b"e"),
    marker(6, is_commit=False),
)


def test_a_log_says_what_is_open_and_what_was_aborted():
    """A marker without a transaction says nothing."""
    told = replay(LOG)
    assert told.open == {7: 7}
    assert told.aborted == [ABORTED]
    assert replay(b"").aborted == []


def test_a_reader_passes_over_what_was_aborted():
    """From any offset on, up to the ABORT marker."""
    stable = log_of(*[bytearray(each) for each in split(LOG)[:7]])
    aborted = [AbortedTransaction(8, 1)]
    assert read_committed(stable, 0, aborted) == (
        [Shown(0, b"a"), Shown(2, b"c"), Shown(5, b"d")],
        7,
    )
    assert read_committed(stable, 1, aborted)[0] == [Shown(2, b"c"), Shown(5, b"d")]
    assert read_committed(stable, 0, [])[0][1] == Shown(1, b"b")
    assert read_committed(b"", 3, []) == ([], 3)


def test_a_log_says_how_transactions_ended():
    """Without those that are open, or have no records there."""
    assert [*ended(LOG)] == [Ended([b"a"], True), Ended([b"b"], False), Ended([b"d"], True)]


@pytest.mark.parametrize(
    ("ends", "match"),
    [
        ([False, True], None),
        ([None, True], r"broker-1 out-0 has no marker between \['a', 'b'\]"),
        ([True, True], "commits a: no process has asked to commit"),
        ([False, False], "aborts b, which was committed"),
    ],
)
def test_a_replica_with_another_marker_is_found(ends, match):
    """Of two transactions of a producer, the first one is not committed."""
    attempts = Attempts()
    attempt_of(attempts, "a", Outcome.NOT_ASKED)
    attempt_of(attempts, "b", Outcome.COMMITTED)
    batches = []
    for name, is_commit in zip("ab", ends, strict=True):
        batches.append(records(7, value(name, 0)))
        if is_commit is not None:
            batches.append(marker(7, is_commit=is_commit))
    right = RightMarkers("out", attempts)
    with nullcontext() if match is None else pytest.raises(Violation, match=match):
        right.compare("broker-1", P, log_of(*batches))


def split(data: bytes) -> list[bytes]:
    parts, at = [], 0
    while at < len(data):
        size = read_header(data, at).size
        parts.append(data[at : at + size])
        at += size
    return parts


def belief(**changed) -> Belief:
    sound = Belief("broker-1", P, {7: 7}, [ABORTED], LOG)
    return sound._replace(**changed)


def test_a_replica_that_believes_its_log_passes():
    """Of a compacted topic only open transactions are compared."""
    SoundBeliefs().compare(belief())
    SoundBeliefs(("out",)).compare(belief(aborted=[]))


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"open": {}}, "it believes {}"),
        ({"open": {7: 7, 8: 1}}, "it believes {7: 7, 8: 1}"),
        ({"aborted": []}, "differs"),
        ({"aborted": [ABORTED, Aborted(8, 1, 6)]}, "last_offset=6"),
        ({"aborted": [ABORTED, ABORTED]}, "its order"),
    ],
)
def test_a_replica_that_believes_something_else_is_found(changed, match):
    """An open transaction or an aborted one too many, or too few."""
    with pytest.raises(Violation, match=match):
        SoundBeliefs().compare(belief(**changed))

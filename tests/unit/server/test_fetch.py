"""FETCH through its handler (rows FET, A10, A17)."""

import pytest
import trio
import trio.testing

from minibroker.broker.replication.purgatory import Parked
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.fetch import (
    SESSION_EPOCH_NONE,
    SESSION_EPOCH_OPEN,
    FetchResponse,
    PartitionFetch,
)
from minibroker.protocol.types import TopicPartition
from tests.unit.node import Node, batch_of, records_of, state_of
from tests.unit.server.fetching import SMALL, answer, answers, append, ask, waits, want


def test_a_consumer_reads_to_the_high_watermark_a_follower_to_the_end() -> None:
    """FET-01: what is not committed is shown to followers only."""
    node = Node()
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    append(node, batch_of(), batch_of(), batch_of())
    node.followed(2, 2)
    consumed = answer(node, want())
    assert len(records_of(consumed)) == 2 * SMALL
    assert (consumed.high_watermark, consumed.log_start) == (2, 0)
    followed = answer(node, want(2), replica_id=2)
    assert len(records_of(followed)) == SMALL


def test_a_debugging_reader_is_served_as_a_consumer() -> None:
    """Replica id -2 of Kafka: to the high watermark, by the leader alone; it is no follower."""
    node = Node()
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    append(node, batch_of(), batch_of(), batch_of())
    node.followed(2, 2)
    assert len(records_of(answer(node, want(), replica_id=-2))) == 2 * SMALL
    waits(node, want(2), replica_id=-2)
    node.apply(state_of(leader=2, isr=(1, 2), replicas=(1, 2), epochs=(1, 1)))
    assert answer(node, want(), replica_id=-2).error == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("isolation_level", [0, 1])
def test_without_transactions_the_isolation_level_changes_nothing(isolation_level: int) -> None:
    """READ_COMMITTED (1) reads to the high watermark, too."""
    node = Node()
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    append(node, batch_of(), batch_of(), batch_of())
    node.followed(2, 2)
    consumed = answer(node, want(), isolation_level=isolation_level)
    assert (consumed.error, len(records_of(consumed))) == (0, 2 * SMALL)
    waits(node, want(2), isolation_level=isolation_level)


@pytest.mark.parametrize(("wait_ms", "bytes_min"), [(0, 1), (1_000, 0)])
def test_an_impatient_fetch_is_answered_at_once(wait_ms: int, bytes_min: int) -> None:
    """FET-03: max wait 0 or min bytes 0 answers at once, with nothing if there is nothing."""
    node = Node()
    node.lead()
    assert len(answer(node, want(), wait_ms_max=wait_ms, bytes_min=bytes_min).records) == 0


def test_a_fetch_of_nothing_is_answered_at_once() -> None:
    """A17: without partitions there is nothing to wait for."""
    assert answers(Node()) == ()


async def test_it_waits_for_enough_bytes(autojump_clock: trio.testing.MockClock) -> None:
    """FET-03: below min bytes it waits; the append that makes it enough completes it."""
    node = Node()
    node.lead()
    append(node, batch_of())
    waiting = waits(node, want(), bytes_min=SMALL + 1)
    assert waiting.attempt(0.0) is None
    answered = []

    async def settle() -> None:
        answered.append(await node.purgatory.wait_for_answer(waiting))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(settle)
        await trio.testing.wait_all_tasks_blocked()
        append(node, batch_of())
    assert len(records_of(answered[0].partitions[0])) == 2 * SMALL
    assert trio.current_time() < waiting.deadline()


async def test_it_answers_with_what_there_is_when_time_is_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """FET-03: after max wait the answer has whatever there is."""
    node = Node()
    node.lead()
    append(node, batch_of())
    waiting = waits(node, want(), bytes_min=10_000)
    answered = await node.purgatory.wait_for_answer(waiting)
    assert trio.current_time() >= waiting.deadline()
    assert len(records_of(answered.partitions[0])) == SMALL


def test_more_than_the_limit_is_not_waited_for() -> None:
    """Min bytes above the most that may be answered is that most."""
    node = Node()
    node.lead()
    append(node, batch_of(), batch_of())
    assert len(answer(node, want(), bytes_min=1_000, bytes_max=SMALL + 1).records) == 1


def test_an_error_comes_at_once_with_the_data_of_the_others() -> None:
    """FET-04: one partition's error does not wait, nor does it withhold the others' records."""
    node = Node()
    node.lead()
    append(node, batch_of())
    good, bad = answers(node, want(), want(name=TopicPartition("u", 0)), bytes_min=10_000)
    assert len(records_of(good)) == SMALL
    assert bad.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("epoch", "code"),
    [
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (5, ErrorCode.NONE),
        (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (-1, ErrorCode.NONE),
    ],
)
def test_the_asker_s_epoch_is_checked(epoch: int, code: ErrorCode) -> None:
    """FET-05: an older epoch is fenced, a newer one unknown, none is not checked."""
    node = Node()
    node.lead(state_of(epochs=(5, 0)))
    append(node, batch_of())
    assert answer(node, want(leader_epoch=epoch)).error == code


def test_topics_are_fetched_by_their_ids() -> None:
    """An answer has the ids. An id that no topic has is UNKNOWN_TOPIC_ID: it opens no session, and
    does not go into one."""
    node = Node()
    node.lead(state_of(epochs=(5, 0)))
    append(node, batch_of())
    ids = (b"i" * 16, b"j" * 16, b"k" * 16)
    known, *unknown = [PartitionFetch("", 0, topic_id=one) for one in ids]
    code = ErrorCode.UNKNOWN_TOPIC_ID
    for session_epoch in (SESSION_EPOCH_OPEN, SESSION_EPOCH_NONE):
        whole = ask(node, known, *unknown, is_by_id=True, session_epoch=session_epoch)
        assert [(one.topic, one.error, one.topic_id) for one in whole.partitions] == [
            ("", code, ids[1]),
            ("", code, ids[2]),
            ("t", 0, ids[0]),
        ]
        assert whole.session_id == 0
    opened = ask(node, known, is_by_id=True, session_epoch=SESSION_EPOCH_OPEN)
    assert opened.session_id > 0
    session = {"session_id": opened.session_id, "session_epoch": 1, "is_by_id": True}
    refused = ask(node, *unknown, **session)
    assert refused.error == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    again = ask(node, known, **session)
    assert [(one.topic, one.topic_id) for one in again.partitions] == [("t", ids[0])]
    assert len(records_of(again.partitions[0])) == SMALL


def test_the_address_of_another_leader_is_told() -> None:
    """Once for each broker."""
    node = Node()
    node.live(1, 2)
    node.lead(state_of(epochs=(5, 0), leader=2, isr=(2,), replicas=(1, 2)))
    assert ask(node, want(leader_epoch=5)).nodes == ((2, "broker-2", 9092),)


def test_the_epoch_is_checked_before_the_leadership() -> None:
    """FET-05: who is not leader still fences an old epoch, and hints at the leader."""
    node = Node()
    node.lead(state_of(epochs=(5, 0), leader=2, isr=(2,), replicas=(1, 2)))
    fenced = answer(node, want(leader_epoch=4))
    assert fenced.error == ErrorCode.FENCED_LEADER_EPOCH
    assert (fenced.leader_id, fenced.leader_epoch) == (2, 5)
    refused = answer(node, want(leader_epoch=5))
    assert refused.error == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_cut_log_ends_the_wait(autojump_clock: trio.testing.MockClock) -> None:
    """FET-07: an offset beyond the log's end, because it was cut, is answered at once."""
    node = Node()
    node.lead()
    append(node, batch_of(), batch_of())
    waiting = waits(node, want(2))
    node.partition().log.truncate_to(1, node.wall_time_ms)
    cut = waiting.attempt(0.0)
    assert cut is not None
    assert cut.partitions[0].error == ErrorCode.OFFSET_OUT_OF_RANGE


def test_between_high_watermark_and_end_there_is_nothing_yet() -> None:
    """R9: an offset above the high watermark but in the log waits, and is not out of range."""
    node = Node()
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    append(node, batch_of(), batch_of())
    waiting = waits(node, want(1))
    node.followed(2, 2)
    done = waiting.attempt(0.0)
    assert done is not None
    assert len(records_of(done.partitions[0])) == SMALL


def test_a_leader_that_may_have_been_replaced_sends_no_consumer_back() -> None:
    """The next leader may have more; a broker that registered again may not know of it yet."""
    node = Node()
    node.lead()
    append(node, batch_of())
    node.broker_epoch += 1
    assert answer(node, want(2)).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    node.lead()
    assert answer(node, want(2)).error == ErrorCode.OFFSET_OUT_OF_RANGE
    node.controller.is_session_over = True
    assert answer(node, want(2)).error == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_out_of_range() -> None:
    """LOG-11, FET-12: beyond the end, or below the start whatever the epochs say."""
    node = Node()
    node.lead(state_of(epochs=(3, 0)))
    append(node, batch_of())
    assert answer(node, want(2)).error == ErrorCode.OFFSET_OUT_OF_RANGE
    node.partition().log.restart_at(5, node.wall_time_ms)
    node.partition().log.assign_epoch(4, 5)
    below = answer(node, want(4, last_fetched_epoch=9))
    assert below.error == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_refused_or_diverging_read_is_no_progress() -> None:
    """FET-09: only a read that was granted moves the follower's recorded position."""
    node = Node()
    node.lead(state_of(epochs=(3, 0), isr=(1, 2), replicas=(1, 2)))
    append(node, batch_of(), batch_of())
    node.lead(state_of(epochs=(4, 1), isr=(1, 2), replicas=(1, 2)))
    append(node, batch_of())
    for asked in (want(3, leader_epoch=3), want(9), want(3, last_fetched_epoch=3)):
        answers(node, asked, replica_id=2)
        assert node.partition().high_watermark == 0
    answers(node, want(2, last_fetched_epoch=3), replica_id=2)
    assert node.partition().high_watermark == 2


async def test_where_the_logs_part() -> None:
    """A10: an epoch that ended before the asked offset is answered with its end, and no records."""
    node = Node()
    node.lead(state_of(epochs=(3, 0)))
    append(node, batch_of(), batch_of())
    node.lead(state_of(epochs=(5, 1)))
    append(node, batch_of())
    parted = answer(node, want(3, last_fetched_epoch=4), bytes_min=10_000)
    assert (parted.diverging_epoch, parted.diverging_end) == (3, 2)
    assert len(parted.records) == 0
    newer = answer(node, want(1, last_fetched_epoch=4))
    assert (newer.diverging_epoch, newer.diverging_end) == (3, 2)
    longer = answer(node, want(9, last_fetched_epoch=5))
    assert (longer.error, longer.diverging_epoch, longer.diverging_end) == (0, 5, 3)
    same = answer(node, want(2, last_fetched_epoch=3))
    assert same.diverging_epoch == -1
    assert len(records_of(same)) == SMALL
    unknown = answer(node, want(2, last_fetched_epoch=6))
    assert unknown.error == ErrorCode.UNKNOWN_LEADER_EPOCH


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(0, ErrorCode.UNKNOWN_LEADER_EPOCH), (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER)],
)
def test_a_strange_follower_is_refused(epoch: int, code: ErrorCode) -> None:
    """PAR-19: a broker outside the assignment is refused, and so is who calls itself the leader."""
    node = Node()
    node.lead()
    append(node, batch_of())
    assert answer(node, want(leader_epoch=epoch), replica_id=9).error == code
    assert answer(node, want(leader_epoch=epoch), replica_id=1).error == code


def test_limits_and_order() -> None:
    """FET-11: in the request's order; the first batch comes whole, the rest obeys what is left."""
    node = Node()
    names = [TopicPartition("t", number) for number in range(3)]
    node.lead(*map(state_of, names))
    large = batch_of(size=1_000)
    append(node, large, batch_of(), name=names[0])
    append(node, batch_of(), batch_of(), name=names[1])
    append(node, batch_of(), name=names[2])
    wanted = [want(name=name, bytes_max=SMALL) for name in names]
    first, second, third = answers(node, *wanted, bytes_max=500)
    assert len(records_of(first)) == len(large)
    assert len(second.records) == len(third.records) == 0
    second, third, first = answers(node, *wanted[1:], wanted[0], bytes_max=2 * SMALL + 10)
    assert len(records_of(second)) == len(records_of(third)) == SMALL
    assert len(first.records) == 0


def test_the_broker_s_own_limit_holds() -> None:
    """No answer is larger than fetch.max.bytes, but for its first batch."""
    node = Node(fetch_max_bytes="1024")
    node.lead()
    append(node, *(batch_of(size=600) for _ in range(3)))
    assert len(records_of(answer(node, want()))) < 1_024


def test_a_session_is_told_only_news() -> None:
    """In a session an answer holds only partitions that have something to say."""
    node = Node()
    names = [TopicPartition("t", number) for number in range(3)]
    node.lead(*map(state_of, names))
    opened = ask(node, *(want(name=name) for name in names), session_epoch=0, bytes_min=0)
    assert isinstance(opened, FetchResponse)
    assert [p.partition for p in opened.partitions] == [0, 1, 2]
    append(node, batch_of(), name=names[1])
    news = ask(node, session_id=opened.session_id, session_epoch=1)
    assert isinstance(news, FetchResponse)
    assert [p.partition for p in news.partitions] == [1]
    waiting = ask(node, want(1, name=names[1]), session_id=opened.session_id, session_epoch=2)
    assert isinstance(waiting, Parked)
    assert waiting.expire().partitions == ()


def test_a_session_out_of_order_is_the_answer_s_error() -> None:
    """A session that is unknown is told at the top of the answer."""
    outcome = ask(Node(), session_id=5, session_epoch=1)
    assert outcome == FetchResponse(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)

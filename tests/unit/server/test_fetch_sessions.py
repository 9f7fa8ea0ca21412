"""Fetch sessions: what is remembered, what travels, who is evicted."""

import random
from dataclasses import replace

import pytest

from minibroker.broker.errors import Refused
from minibroker.broker.replication.purgatory import Purgatory
from minibroker.broker.server.fetch_sessions import (
    IDLE_S_MAX,
    SESSION_EPOCH_MAX,
    FetchContext,
    FetchSessions,
)
from minibroker.broker.server.handlers import fetch
from minibroker.broker.server.request_memory import RequestMemory
from minibroker.broker.turns import AT_ONCE
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.fetch import (
    SESSION_EPOCH_NONE,
    FetchRequest,
    PartitionFetch,
    PartitionFetched,
)
from minibroker.protocol.types import TopicIdPartition, TopicPartition


def sessions(slots: int = 10) -> FetchSessions:
    return FetchSessions(random.Random(1), slots, Purgatory(), RequestMemory(2**28))


def want(partition: int, offset: int = 0) -> PartitionFetch:
    return PartitionFetch("t", partition, offset)


def opening(*partitions: PartitionFetch) -> FetchRequest:
    return FetchRequest(session_id=0, session_epoch=0, partitions=partitions)


def later(session_id: int, epoch: int, *partitions: PartitionFetch) -> FetchRequest:
    return FetchRequest(session_id=session_id, session_epoch=epoch, partitions=partitions)


def numbers(context: FetchContext) -> list[int]:
    return [wanted.name.partition for wanted in context.wanted]


def answers(context: FetchContext, *fetched: PartitionFetched) -> tuple[PartitionFetched, ...]:
    pairs = zip(context.wanted, fetched, strict=True)
    return tuple(answer for wanted, answer in pairs if context.must_send(wanted, answer))


def told(partition: int, high_watermark: int, **more: object) -> PartitionFetched:
    return PartitionFetched("t", partition, high_watermark=high_watermark, log_start=0, **more)


def test_an_open_session_remembers_what_was_asked_for() -> None:
    """A later request names only what changed, and what changed goes last (FET-11)."""
    slots = sessions()
    first = slots.context(opening(want(0), want(1), want(2)), 0.0)
    assert numbers(first) == [0, 1, 2]
    second = slots.context(later(first.session_id, 1, want(0, 5)), 0.0)
    assert numbers(second) == [1, 2, 0]
    assert second.wanted[2].request.fetch_offset == 5


def test_forgotten_partitions_are_dropped() -> None:
    """A partition that the asker gave up is asked for no more."""
    slots = sessions()
    first = slots.context(opening(want(0), want(1)), 0.0)
    request = FetchRequest(
        session_id=first.session_id, session_epoch=1, forgotten=(TopicPartition("t", 0),)
    )
    assert numbers(slots.context(request, 0.0)) == [1]


@pytest.mark.parametrize(
    "illegal",
    [
        PartitionFetch("t", 2**31),
        PartitionFetch("t", -(2**40)),
        PartitionFetch("t" * 250, 0),
        PartitionFetch("t", 0, topic_id=b"short"),
    ],
    ids=("number", "negative", "name", "id"),
)
def test_what_kafka_s_wire_cannot_name_comes_into_no_session(illegal: PartitionFetch) -> None:
    """Its reader may go on by that wire, on which no answer could name the partition."""
    slots = sessions()
    with pytest.raises(Refused) as refused:
        slots.context(opening(want(0), illegal), 0.0)
    assert refused.value.code == ErrorCode.INVALID_REQUEST
    assert slots.statistics() == 0
    whole = FetchRequest(partitions=(illegal,), session_epoch=SESSION_EPOCH_NONE)
    assert len(slots.context(whole, 0.0).wanted) == 1


def test_topics_are_forgotten_by_their_ids() -> None:
    """Also a deleted one, which has no name any more; and it may be named again under another."""
    slots = sessions()
    old, new = b"o" * 16, b"n" * 16
    wanted = [PartitionFetch("t", n, topic_id=old) for n in (0, 1)]
    first = slots.context(opening(*wanted), 0.0)
    request = FetchRequest(
        session_id=first.session_id,
        session_epoch=1,
        partitions=(PartitionFetch("t", 0, 5, topic_id=new),),
        is_by_id=True,
        forgotten_by_id=(TopicIdPartition(old, 0), TopicIdPartition(new, 1)),
    )
    left = slots.context(request, 0.0).wanted
    assert [(one.name.partition, one.request.topic_id) for one in left] == [(1, old), (0, new)]


def test_only_news_travels() -> None:
    """After the first answer a partition is mentioned only if it has something to say."""
    slots = sessions()
    first = slots.context(opening(want(0), want(1)), 0.0)
    assert len(answers(first, told(0, 3), told(1, 0))) == 2
    second = slots.context(later(first.session_id, 1), 0.0)
    same, moved = told(0, 3), told(1, 4)
    assert answers(second, same, moved) == (moved,)
    third = slots.context(later(first.session_id, 2), 0.0)
    assert answers(third, told(0, 3, records=b"x"), told(1, 4)) == (told(0, 3, records=b"x"),)


def test_another_topic_of_the_same_name_is_told_anew() -> None:
    """What was told of a deleted topic says nothing about the one that has its name now."""
    slots = sessions()
    old, new = (replace(want(0), topic_id=bytes(15) + digit) for digit in (b"1", b"2"))
    first = slots.context(opening(old), 0.0)
    assert len(answers(first, told(0, 3))) == 1
    second = slots.context(later(first.session_id, 1, new), 0.0)
    assert answers(second, told(0, 3)) == (told(0, 3),)


MANY = range(5 * AT_ONCE)


def forgetting(is_by_id: bool) -> tuple[FetchSessions, FetchRequest]:
    """A session of many partitions, and a request to drop them all but the last one."""
    slots, topic_id = sessions(), bytes(15) + b"t"
    wanted = [PartitionFetch("t", number, 0, topic_id=topic_id) for number in MANY]
    opened = slots.context(opening(*wanted), 0.0)
    if is_by_id:
        ids = tuple(TopicIdPartition(topic_id, number) for number in MANY[:-1])
        return slots, replace(later(opened.session_id, 1), forgotten_by_id=ids)
    names = tuple(TopicPartition("t", number) for number in MANY[:-1])
    return slots, replace(later(opened.session_id, 1), forgotten=names)


@pytest.mark.parametrize("is_by_id", [True, False], ids=["by id", "by name"])
def test_many_forgotten_partitions_take_turns(is_by_id: bool) -> None:
    """Others are served meanwhile, and may take the session away."""
    slots, request = forgetting(is_by_id)
    assert fetch.is_large(request)
    assert len([*slots.context_in_turns(request, 0.0, "")]) >= len(MANY) // AT_ONCE - 1
    assert numbers(slots.context(later(request.session_id, 2), 0.0)) == [MANY[-1]]
    slots, request = forgetting(is_by_id)
    turns = slots.context_in_turns(request, 0.0, "")
    next(turns)
    slots.close(request.session_id)
    with pytest.raises(Refused) as refused:
        for _ in turns:
            pass
    assert refused.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_what_is_forgotten_and_named_again_is_told_anew() -> None:
    """Its asker has not taken the answer that was under way."""
    slots = sessions()
    first = slots.context(opening(want(0)), 0.0)
    assert len(answers(first, told(0, 3))) == 1
    again = replace(later(first.session_id, 1, want(0)), forgotten=(TopicPartition("t", 0),))
    second = slots.context(again, 0.0)
    assert answers(second, told(0, 3)) == (told(0, 3),)


def test_errors_and_divergences_always_travel() -> None:
    """An error is told each time, and after it the partition is told anew."""
    slots = sessions()
    first = slots.context(opening(want(0)), 0.0)
    answers(first, told(0, 3))
    second = slots.context(later(first.session_id, 1), 0.0)
    error = PartitionFetched("t", 0, ErrorCode.OFFSET_OUT_OF_RANGE)
    assert answers(second, error) == (error,)
    assert answers(second, told(0, 3)) == (told(0, 3),)
    assert answers(second, told(0, 3)) == ()
    diverging = told(0, 3, diverging_epoch=1, diverging_end=2)
    assert answers(second, diverging) == (diverging,)


def test_without_a_session_everything_travels() -> None:
    """Epoch -1 opens none, and closes the one it names."""
    slots = sessions()
    first = slots.context(opening(want(0)), 0.0)
    plain = slots.context(later(first.session_id, SESSION_EPOCH_NONE, want(0)), 0.0)
    assert plain.session_id == 0
    assert answers(plain, told(0, 3)) == answers(plain, told(0, 3)) == (told(0, 3),)
    assert slots.statistics() == 0


@pytest.mark.parametrize(
    ("session", "epoch", "code"),
    [
        ("other", 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ("same", 2, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
    ],
)
def test_out_of_order_is_refused(session: str, epoch: int, code: ErrorCode) -> None:
    """An unknown id or an epoch out of order tells the asker to open a new session."""
    slots = sessions()
    session_id = slots.context(opening(want(0)), 0.0).session_id
    wrong = session_id if session == "same" else session_id ^ 1
    with pytest.raises(Refused) as refused:
        slots.context(later(wrong, epoch), 0.0)
    assert refused.value.code == code
    assert numbers(slots.context(later(session_id, 1), 0.0)) == [0]


def test_a_session_is_its_asker_s() -> None:
    """Another broker, or a consumer, that names it is told that there is none."""
    slots = sessions()
    session_id = slots.context(replace(opening(want(0)), replica_id=2), 0.0).session_id
    for stranger in (3, -1):
        with pytest.raises(Refused) as refused:
            slots.context(replace(later(session_id, 1), replica_id=stranger), 0.0)
        assert refused.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert numbers(slots.context(replace(later(session_id, 1), replica_id=2), 0.0)) == [0]


def test_epochs_wrap_to_one() -> None:
    """The epoch after the largest one is 1, because 0 opens a session."""
    slots = sessions()
    first = slots.context(opening(want(0)), 0.0)
    assert first.session is not None
    first.session.next_epoch = SESSION_EPOCH_MAX
    slots.context(later(first.session_id, SESSION_EPOCH_MAX), 0.0)
    slots.context(later(first.session_id, 1), 0.0)


def test_sessions_that_nobody_uses_go() -> None:
    """Of many askers that went without a word none is remembered for ever."""
    slots = sessions(10)
    for number in range(5):
        slots.context(opening(want(0)), float(number))
    used = slots.context(opening(want(0)), 5.0).session_id
    slots.context(later(used, 1), 100.0)
    assert slots.statistics() == 6
    slots.context(later(used, 2), IDLE_S_MAX + 4.0)
    assert slots.statistics() == 1


def test_full_slots_make_room_only_where_somebody_is_idle() -> None:
    """With all slots taken a newcomer gets none until the one idle longest was idle long enough."""
    slots = sessions(2)
    idle = slots.context(opening(want(0)), 0.0).session_id
    busy = slots.context(opening(want(0)), 1.0).session_id
    assert slots.context(opening(want(0)), 2.0).session_id == 0
    now = IDLE_S_MAX
    slots.context(later(busy, 1), now)
    newcomer = slots.context(opening(want(0)), now).session_id
    assert newcomer not in (0, idle, busy)
    with pytest.raises(Refused):
        slots.context(later(idle, 1), now)
    slots.context(later(busy, 2), now)


def test_no_slots_no_sessions() -> None:
    """With no slots at all every request is a full one."""
    slots = sessions(0)
    assert slots.context(opening(want(0)), 1e9).session_id == 0

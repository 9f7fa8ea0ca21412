"""The scenarios of requests that wait or are refused, of late orders, and of who may read and lead.

The transcripts are compared in `test_transcripts.py`. Here stands what each run must show, and what
the rule that breaks it shows instead.
"""

import pytest

from minibroker.testing.lab.transcript import Event, RoleMark
from tests.scripts.playing import after, ends, events, played, texts


def event(name: str, run: str, rule: str, text: str) -> Event:
    """The first event of a run with such a text."""
    return next(one for one in events(played(name, run, rule)) if text in one.text)


@pytest.mark.parametrize(
    ("run", "cause", "leader"),
    [
        ("produce", "1 takes a at offset 0", 0),
        ("fetch", "2 fetches from 1, epoch 0", 0),
        ("isr-shrinks", "controller: 1 leads, epoch 0, ISR 1", 0),
        ("new-leader", "controller: 2 leads, epoch 1, ISR 2", 1),
    ],
)
def test_the_high_watermark_rises_at_four_moments(run: str, cause: str, leader: int):
    """It rises in the event itself; by timer it rises when the leader looks (A2)."""
    for rule, risen in (("causes", cause), ("by-timer", "looks at its ISR")):
        told = events(played("hw-causes", run, rule))
        first = next(one for one in told if one.replicas[leader].high_watermark == 1)
        assert risen in first.text
        assert cause in [one.text for one in told] or rule == "by-timer"


def test_a_controller_that_was_replaced_is_not_obeyed():
    """Its LEADER_AND_ISR and STOP_REPLICA are refused whole (RM-01); else there are two leaders."""
    told = played("role-switches", "old-controller", "fencing")
    refused = [text for text in texts(told) if "STALE_CONTROLLER_EPOCH" in text]
    assert ["leads" in text for text in refused] == [True, False]
    assert "b on 1,2." in told.verdict
    both = after(played("role-switches", "old-controller", "no-fencing"), "2 leads, epoch 1; done")
    assert [state.mark for state in both] == [RoleMark.LEADER] * 2


def test_an_order_of_an_old_leader_epoch_is_not_obeyed():
    """It is FENCED_LEADER_EPOCH, and one that is repeated changes nothing (A18, RM-03)."""
    told = played("role-switches", "old-leader", "fencing")
    fenced = after(told, "1 leads, epoch 0; FENCED_LEADER_EPOCH")
    assert fenced == after(told, "1 answers x with NOT_LEADER_OR_FOLLOWER")
    repeated = after(told, "2 leads, epoch 1; done")
    assert repeated == after(told, "2 answers the FETCH of 1")
    assert "x LOST" in played("role-switches", "old-leader", "no-fencing").verdict


def test_a_replica_is_stopped_by_orders_of_its_own_epoch():
    """An older STOP_REPLICA is fenced; with `delete` the log goes, and again is no error."""
    told = played("role-switches", "stop", "fencing")
    assert after(told, "stop the replica, epoch 0; FENCED")[0].mark is RoleMark.FOLLOWER
    assert after(told, "stop the replica, epoch 1; done")[0].mark is RoleMark.OFFLINE
    deleted = [text for text in texts(told) if "delete the replica" in text]
    assert len(deleted) == 2
    assert all(text.endswith("; done") for text in deleted)
    assert ends(events(told)[-1].replicas)[0] == (0, 0)


def test_requests_wait_until_there_is_an_answer_or_no_time():
    """FETCH 500 ms, PRODUCE 30 s; the record stays, and may be committed later (A16, A17)."""
    told = texts(played("waiting", "follower", "committed"))
    assert "1 answers the FETCH of 2: its time is up" in told
    assert "1 answers the FETCH of 2" in told
    expired = event("waiting", "consumer", "committed", "1 answers the reader, its time is up")
    answered = event("waiting", "consumer", "committed", "1 answers the reader: a")
    assert (expired.now, answered.now) == (0.5, 0.7)
    assert answered.replicas[0].high_watermark == 1
    late = event("waiting", "producer", "committed", "1 answers a with REQUEST_TIMED_OUT")
    assert (late.now, ends(late.replicas)[0]) == (30, (1, 0))
    assert "the reader asks 1 from 0: a" in texts(played("waiting", "producer", "committed"))
    hasty = event("waiting", "consumer", "appended", "1 answers the reader: a")
    assert hasty.replicas[0].high_watermark == 0
    assert "1 acknowledges a" in texts(played("waiting", "producer", "appended"))


def test_offsets_outside_of_the_log_are_told():
    """Before its start and behind its end, not between the high watermark and the end (FET)."""
    told = texts(played("out-of-range", "consumer", "range"))
    asked = [text.partition(": ")[::2] for text in told if text.startswith("the reader")]
    assert [(who[-1], answer) for who, answer in asked] == [
        ("0", "OFFSET_OUT_OF_RANGE"),
        ("3", "OFFSET_OUT_OF_RANGE"),
        ("2", "nothing"),
        ("1", "nothing"),
        ("1", "b"),
    ]
    vague = played("out-of-range", "consumer", "nearest-offset")
    assert not any("OUT_OF_RANGE" in text for text in texts(vague))


def test_a_follower_behind_the_log_start_begins_there():
    """It drops what it has and joins again (A12); without the error it is stuck."""
    told = played("out-of-range", "follower", "range")
    assert "2 is told OFFSET_OUT_OF_RANGE; its log starts again at 3" in texts(told)
    assert events(told)[-1].replicas[0].isr == (1, 2)
    assert "d on 1." in played("out-of-range", "follower", "nearest-offset").verdict


def test_retention_deletes_nothing_that_is_not_committed():
    """However old a record is, it stays until it is committed (LOG-13)."""
    kept = texts(played("out-of-range", "uncommitted", "range"))
    assert "1 deletes 0 segments; its log starts at 0" in kept
    assert "the reader asks 1 from 0: a" in kept
    deleted = texts(played("out-of-range", "uncommitted", "early-retention"))
    assert "1 deletes 1 segment; its log starts at 1" in deleted


def test_a_replica_that_was_out_of_sync_leads_only_where_that_is_allowed():
    """Off: nobody leads and nothing is lost. On: b is gone, and the consumer is told where."""
    off, on = (played("unclean-election", run, "epoch") for run in ("off", "on"))
    assert "controller: nobody leads, epoch 1, ISR 1" in texts(off)
    assert "b on 1,2." in off.verdict
    assert "controller: 2 leads, epoch 1, ISR 2" in texts(on)
    assert "the reader asks 2 from 2: epoch 0 ends at 1; it goes there" in texts(on)
    assert "b LOST; c on 1,2." in on.verdict


def test_too_few_replicas_are_told_before_and_after_the_append():
    """Refused at the append, or at the acknowledgement, or timed out (PRO-04, A16, K1)."""
    before = played("not-enough-replicas", "before", "min-isr")
    assert "1 answers a with NOT_ENOUGH_REPLICAS" in texts(before)
    assert "the reader asks 1 from 0: nothing" in texts(before)
    after_append = event(
        "not-enough-replicas", "after", "min-isr", "a with NOT_ENOUGH_REPLICAS_AFTER_APPEND"
    )
    assert ends(after_append.replicas)[0] == (1, 1)
    late = event("not-enough-replicas", "too-late", "min-isr", "a with REQUEST_TIMED_OUT")
    assert ends(late.replicas)[0] == (1, 0)
    alone = "no-min-isr"
    assert "a LOST" in played("not-enough-replicas", "before", alone).verdict
    for run in ("after", "too-late"):
        assert "1 acknowledges a" in texts(played("not-enough-replicas", run, alone))


def test_what_acks_promise():
    """acks=1 loses what it acknowledged, acks=0 what nobody heard of, acks=all nothing (K4)."""
    assert "Sent with acks=0: a LOST" in played("acks", "acks-0", "committed").verdict
    assert "acknowledged: a LOST" in played("acks", "acks-1", "committed").verdict
    assert "acknowledged: b on 1,2." in played("acks", "acks-all", "committed").verdict
    assert "b on 1,2; a on 1,2." in played("acks", "acks-all-again", "committed").verdict
    assert "LOST" not in played("acks", "fetched", "committed").verdict
    assert "acknowledged: a LOST" in played("acks", "acks-all", "appended").verdict


def test_a_consumer_sees_what_is_committed_and_keeps_it():
    """A new leader whose high watermark is below the position has nothing for it, and no error."""
    told = events(played("consumer-view", "failover", "committed"))
    seen = [one.reader.split() for one in told]
    assert seen[-1] == ["2", "a", "c"]
    failed_over = next(one for one in told if "the reader asks 2 from 1: nothing" in one.text)
    assert failed_over.replicas[1].high_watermark == 0
    for one in events(played("consumer-view", "committed", "committed")):
        assert int(one.reader.split()[0]) <= one.replicas[0].high_watermark
    hasty = events(played("consumer-view", "failover", "appended"))
    assert hasty[-1].reader.split() == ["2", "a", "b", "c"]


def test_a_new_replica_counts_when_it_has_caught_up():
    """From an empty disk to the ISR, one batch at a time; it cannot lead before (A3, PAR-06)."""
    told = events(played("new-replica", "catches-up", "reached"))
    joined = next(one for one in told if "1 asks for ISR 1,2,3" in one.text)
    assert joined.replicas[2].log_end == 3
    kept = played("new-replica", "leader-fails", "reached").verdict
    assert "a on 1,2,3; b on 1,2,3." in kept
    assert "b LOST" in played("new-replica", "leader-fails", "join-at-once").verdict

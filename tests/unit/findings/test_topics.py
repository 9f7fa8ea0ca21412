"""What the doctor says of topics: each finding, brought about by the metadata it is about."""

from minibroker.broker.config import load
from minibroker.broker.findings import Level
from minibroker.broker.findings.topics import (
    of_defaults,
    of_refused_topics,
    of_timestamps,
    of_topics,
)
from minibroker.protocol.messages.brokers import FarStampedTopic
from minibroker.protocol.messages.metadata import PartitionMetadata, TopicMetadata

LIVE = (1, 2, 3)
SAFE = {
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
    "flush": "never",
}


def partition(
    number: int = 0,
    *,
    leader: int = 1,
    replicas: tuple[int, ...] = LIVE,
    isr: tuple[int, ...] | None = None,
    offline: tuple[int, ...] = (),
) -> PartitionMetadata:
    """One that is well, unless it is told otherwise."""
    in_sync = replicas if isr is None else isr
    return PartitionMetadata(number, 0, leader, 3, replicas, in_sync, offline)


def bad(
    *partitions: PartitionMetadata, live: tuple[int, ...] = LIVE, **settings: str
) -> list[tuple[str, str]]:
    """Level and text of what is not well with a topic `t`, each with some advice."""
    topic = TopicMetadata("t", 0, bytes(16), False, partitions)
    configs = SAFE | {name.replace("_", "."): value for name, value in settings.items()}
    found = list(of_topics([topic], {"t": configs}, live))
    assert all(bool(each.advice) == (each.level is not Level.OK) for each in found)
    return [(each.level, each.what) for each in found if each.level is not Level.OK]


def test_topics_that_are_well_are_told_so() -> None:
    """In one line."""
    topic = TopicMetadata("t", 0, bytes(16), False, (partition(0), partition(1)))
    (found,) = of_topics([topic], {"t": SAFE}, LIVE)
    assert found == ("ok", "2 partitions: all replicas are in sync", "")


def test_a_partition_without_a_leader_names_who_is_missing() -> None:
    """And each broker that is not alive is told with what it holds."""
    lost = partition(leader=-1, replicas=(2, 3), isr=(3,), offline=(3,))
    assert bad(lost, live=(1, 2)) == [
        ("problem", "broker 3 is not alive, and holds 1 replica"),
        ("problem", "1 partition without a leader: t-0 (in sync, but not alive: broker 3)"),
        (
            "note",
            "topics that need all replicas in sync: acks=all is refused while any broker is"
            " away: t",
        ),
    ]


def test_a_partition_that_refuses_acks_all_is_told() -> None:
    """Fewer in sync than min.insync.replicas."""
    text = "1 partition with fewer replicas in sync than min.insync.replicas, so acks=all is"
    assert bad(partition(isr=(1,))) == [("problem", f"{text} refused: t-0")]


def test_a_partition_that_is_under_replicated_is_told() -> None:
    """One that still takes records, but lacks a replica."""
    lagging = [partition(number, isr=(1, 2)) for number in range(6)]
    text = "6 partitions under-replicated: t-0, t-1, t-2, t-3, t-4, and 1 more"
    assert bad(*lagging, partition(6)) == [("problem", text)]


def test_settings_that_permit_a_loss_are_noted() -> None:
    """Somebody may want them so; the exit code is not changed by them."""
    single, three, two = partition(replicas=(1,)), partition(), partition(replicas=(1, 2))
    gone = "topics that have one replica: what is in them is gone with its broker: t"
    assert bad(single, flush="always") == [("note", gone)]
    unsynced = (
        "topics that have one replica and flush=never: a power cut may take what was acknowledged:"
        " t"
    )
    assert bad(single, live=(1,)) == [("note", unsynced)]
    alone = (
        "topics that have min.insync.replicas=1: acks=all may mean a single broker, and its loss"
        " theirs: t"
    )
    assert bad(three, min_insync_replicas="1") == [("note", alone)]
    rigid = "topics that need all replicas in sync: acks=all is refused while any broker is away: t"
    assert bad(two) == [("note", rigid)]
    unclean = (
        "topics that have unclean.leader.election.enable=true: acknowledged records may be given"
        " up: t"
    )
    assert bad(three, unclean_leader_election_enable="true") == [("note", unclean)]


def test_defaults_that_permit_a_loss_are_noted() -> None:
    """Before a broker is started with them, and a topic made."""

    def told(**settings: str) -> list[str]:
        flags = {name.replace("_", "."): value for name, value in settings.items()}
        return [each.what for each in of_defaults(load(flags=flags).config)]

    three = {"default_replication_factor": "3", "offsets_topic_replication_factor": "3"}
    assert told(**three, min_insync_replicas="2") == []
    (alone,) = told(**three, min_insync_replicas="1")
    assert alone.startswith("topics that have min.insync.replicas=1: ")
    assert alone.endswith(": new ones, __consumer_offsets")
    (unsynced,) = told(flush="never")
    assert unsynced.startswith("topics that have one replica and flush=never: ")


def test_what_cannot_be_created_is_a_problem() -> None:
    """With the controller's reason; where everything can be, that is said."""
    reason = "replication factor 3 and min.insync.replicas 3 need 3 live brokers; 2 of 3 live"
    (found,) = of_refused_topics({"new topics": reason})
    assert (found.level, found.what) == (Level.PROBLEM, f"new topics cannot be created: {reason}")
    assert found.advice
    (found,) = of_refused_topics({})
    assert (found.level, found.advice) == (Level.OK, "")


def test_records_that_are_stamped_far_from_now_are_noted() -> None:
    """Seconds for milliseconds: retention deletes them at once. Old data that is kept, and times
    that a topic allows, are noted too; a topic that is gone is not."""
    now = 1_700_000_000_000
    configs = {name: SAFE | {"retention.ms": "604800000"} for name in ("seconds", "ahead")}
    configs["kept"] = SAFE | {"retention.ms": "-1"}
    seen = [
        FarStampedTopic("seconds", now - 1, 5_000, 1),
        FarStampedTopic("seconds", now // 1000, 10, 3),
        FarStampedTopic("ahead", now + 20 * 86_400_000, 0, 1),
        FarStampedTopic("kept", now - 2 * 86_400_000, 0, 1),
        FarStampedTopic("gone", 0, 0, 1),
    ]
    ahead, kept, seconds = of_timestamps(seen, configs, now)
    assert {each.level for each in (ahead, kept, seconds)} == {Level.NOTE}
    assert "topic seconds: records of 3 requests" in seconds.what
    assert "1700000000 ms, 19,656 days behind" in seconds.what
    assert "deletes them at its next check, since retention.ms is 604800000" in seconds.what
    assert "message.timestamp.before.max.ms" in seconds.advice
    assert "milliseconds since 1970" in seconds.advice
    assert "20 days ahead" in ahead.what
    assert "message.timestamp.after.max.ms" in ahead.advice
    assert kept.what.endswith("2 days behind the broker's clock")

"""What the doctor says of brokers: each finding, brought about by the facts that it is about."""

from collections.abc import Iterable
from dataclasses import replace

from minibroker.broker import findings
from minibroker.broker.findings import Finding, Level
from minibroker.broker.findings.brokers import BrokerSeen, ListenerTried, of_brokers
from minibroker.broker.findings.storage import GIB
from minibroker.protocol.messages.brokers import (
    DefectCount,
    DescribeBrokerResponse,
    MachineDescription,
    UncompactedLog,
)
from minibroker.protocol.types import Endpoint, NamedEndpoint

VERSION = "1.0"
MACHINE = MachineDescription(VERSION, "3.11.7", "memory:", "/data", 50 * GIB, 100 * GIB, 40, 65_536)


def broker(node_id: int, **said: object) -> BrokerSeen:
    """One that is well, but for what it says."""
    well = DescribeBrokerResponse(
        node_id,
        cluster_id="c",
        controller_id=1,
        is_ready=True,
        session_timeout_ms=1_000,
        renewal_age_ms=200,
        renewal_us=3_000,
        machine=MACHINE,
    )
    return BrokerSeen(node_id, Endpoint(f"broker-{node_id}", 9092), replace(well, **said))


def on(node_id: int, **facts: object) -> BrokerSeen:
    """One whose machine is well, but for these facts."""
    return broker(node_id, machine=replace(MACHINE, **facts))


def bad(*seen: BrokerSeen, tried: Iterable[ListenerTried] = ()) -> list[tuple[str, str]]:
    """Level and text of what is not well, each with some advice."""
    found = [each for each in of_brokers(seen, tried, VERSION) if each.level is not Level.OK]
    assert all(each.advice for each in found)
    return [(each.level, each.what) for each in found]


def test_brokers_that_are_well_are_told_so() -> None:
    """Every check says that it was made; there is nothing to do about any."""
    found = list(of_brokers([broker(1), broker(2)], [], VERSION))
    assert {(each.level, each.advice) for each in found} == {(Level.OK, "")}
    assert [each.what for each in found] == [
        "broker 1: /data has 50.0 GiB free, 50 % of its disk",
        "broker 1 may open 65536 files, and has 40 open",
        "broker 2: /data has 50.0 GiB free, 50 % of its disk",
        "broker 2 may open 65536 files, and has 40 open",
        "reached where clients are sent, Kafka's and minibroker's own:"
        " broker 1 at broker-1:9092, broker 2 at broker-2:9092",
        "ready: broker 1, 2",
        "the brokers' clocks are within 1 ms",
        "the metadata store answers the brokers within 3 ms",
        "all brokers run minibroker 1.0",
        "all brokers run Python 3.11.7",
    ]


def test_a_defect_is_named() -> None:
    """What failed, how often, and what to do."""
    defect = DefectCount("Metadata", "encode", "KeyError at codec.py:7", 3)
    assert bad(broker(1, defects=(defect,))) == [
        (
            "problem",
            "broker 1 has a defect: it failed to encode a Metadata request 3 times"
            " (KeyError at codec.py:7)",
        )
    ]


def test_clients_are_sent_where_nobody_is() -> None:
    """A broker that is alive and cannot be reached; nothing else is known of it."""
    lost = BrokerSeen(
        2, Endpoint("broker-2", 9092), failure="broker-2:9092 cannot be asked: refused"
    )
    text = "clients of broker 2 are sent where it is not: broker-2:9092 cannot be asked: refused"
    assert bad(broker(1), lost) == [("problem", text)]
    assert bad(lost) == [("problem", text)]


def test_clients_are_sent_to_another_broker() -> None:
    """All of them advertise localhost, and so the same one answers for all."""
    other = replace(broker(1), node_id=2)
    text = "clients are sent to broker-1:9092 for broker 2, and broker 1 answers there"
    assert bad(broker(1), other) == [("problem", text)]


def test_a_listener_for_others_may_be_out_of_reach() -> None:
    """It is told as what it is; one that is reached is not worth a word."""
    inside = NamedEndpoint("INSIDE", "kafka-2", 19092)
    out_of_reach, another = (
        ListenerTried(2, inside, failure="no such host"),
        ListenerTried(2, inside, found=1),
    )
    start = "INSIDE://kafka-2:19092, a listener of broker 2, "
    assert bad(broker(2), tried=[ListenerTried(2, inside, found=2)]) == []
    assert bad(broker(2), tried=[out_of_reach, another]) == [
        ("note", f"{start}cannot be reached from here (no such host)"),
        ("note", f"{start}is broker 1 if called from here"),
    ]


def test_a_broker_that_is_not_ready_says_why() -> None:
    """In its own words."""
    waiting = broker(2, is_ready=False, reasons=("it is shutting down", "more"))
    text = "broker 2 is not ready: it is shutting down; more"
    assert bad(broker(1), waiting) == [("problem", text)]


def test_a_broker_that_the_controller_does_not_hear_is_told() -> None:
    """Whatever it says of itself."""
    ((level, text),) = bad(broker(1), replace(broker(2), is_fenced=True))
    assert (level, text.split(":")[0]) == ("problem", "broker 2 is fenced")


def test_brokers_of_two_clusters_are_told_apart() -> None:
    """One that is not told its cluster yet belongs to none."""
    text = "the brokers are of different clusters: c, d"
    assert bad(broker(1), broker(2, cluster_id="")) == []
    assert bad(broker(1), broker(2, cluster_id="d")) == [("problem", text)]


def test_clocks_that_differ_are_told_beyond_what_may_be_the_way() -> None:
    """Those of brokers among each other are a problem, ours alone is a note."""
    ahead = replace(broker(2), clock_ms=2_500.0)
    text = "the clock of broker 2 is 2.5 s ahead of that of broker 1"
    assert bad(broker(1), ahead) == [("problem", text)]
    assert bad(broker(1), replace(ahead, clock_error_ms=1_600.0)) == []
    together = [replace(broker(node), clock_ms=ms) for node, ms in ((1, 3_000.0), (2, 3_100.0))]
    assert bad(*together) == [("note", "this machine's clock is 3.1 s behind theirs")]
    behind = [replace(each, clock_ms=-each.clock_ms) for each in together]
    assert bad(*behind) == [("note", "this machine's clock is 3.1 s ahead of theirs")]


def test_a_clock_that_jumped_is_told_until_it_is_believed() -> None:
    """With its direction, and how long there is to correct it."""
    jumped = {"clock_jump_ms": 691_200_000, "clock_settles_in_ms": 3_300_000}
    (found,) = bad(broker(1, **jumped))
    assert found == ("problem", "the wall clock of broker 1 jumped forward by 691,200 s")
    (found,) = bad(broker(1, **jumped | {"clock_jump_ms": -60_000}))
    assert found == ("problem", "the wall clock of broker 1 jumped back by 60 s")
    (finding,) = [each for each in of_brokers([broker(1, **jumped)], [], VERSION) if each.advice]
    assert "correct it within 55 min" in finding.advice
    assert not bad(broker(1, clock_jump_ms=5))


def test_a_slow_or_lost_metadata_store_is_told_by_the_leases() -> None:
    """By the part of the session that it takes; and when there was no answer for all of it."""
    took = "the metadata store took {} ms over the lease of broker 1{}"
    assert bad(broker(1, renewal_us=150_000)) == [("note", took.format(150, ""))]
    slow = ", of 1000 ms that it lasts"
    assert bad(broker(1, renewal_us=300_000)) == [("problem", took.format(300, slow))]
    lost = "broker 1 has not reached the metadata store for 2.5 s"
    assert bad(broker(1, renewal_age_ms=2_500)) == [("problem", lost)]


def test_versions_that_differ_are_told() -> None:
    """Of minibroker, of Python, and of this command."""
    texts = [what for level, what in bad(broker(1), on(2, software_version="2.0")) if level]
    assert texts == [
        "the brokers run different versions of minibroker: broker 1 has 1.0, broker 2 has 2.0",
        "this command is minibroker 1.0, not 2.0",
    ]
    text = "the brokers run different versions of Python: broker 1 has 3.11.7, broker 2 has 3.12.1"
    assert bad(broker(1), on(2, python_version="3.12.1")) == [("note", text)]


def test_a_disk_that_fills_is_told() -> None:
    """First as a note; and what is not known is not told."""
    few = "broker 1: /data has 14.0 GiB free, 14 % of its disk"
    assert bad(on(1, disk_free_bytes=14 * GIB)) == [("note", few)]
    full = "broker 1: /data has 4.0 GiB free, 4 % of its disk"
    assert bad(on(1, disk_free_bytes=4 * GIB)) == [("problem", full)]
    small = on(1, disk_free_bytes=GIB // 2, disk_total_bytes=GIB)
    assert bad(small) == [("problem", "broker 1: /data has 0.5 GiB free, 50 % of its disk")]
    assert bad(on(1, disk_free_bytes=-1, disk_total_bytes=-1)) == []


def test_a_limit_of_room_that_is_near_or_reached_is_told() -> None:
    """Of free space, and of the bytes of the logs."""
    near = "broker 1: /data has 50.0 GiB free, 50 % of its disk"
    assert bad(on(1, disk_free_bytes_min=50 * GIB)) == [("note", near)]
    short = f"{near}: below 51.0 GiB no records are taken"
    assert bad(on(1, disk_free_bytes_min=51 * GIB)) == [("problem", short)]
    assert bad(on(1, disk_free_bytes_min=25 * GIB)) == []
    logs = "the logs in broker 1: /data have {} of 10.0 GiB (log.dirs.max.bytes)"
    limits = {"log_bytes_max": 10 * GIB}
    assert bad(on(1, log_bytes=8 * GIB, **limits)) == []
    assert bad(on(1, log_bytes=9 * GIB, **limits)) == [("note", logs.format("9.0"))]
    full = f"{logs.format('10.0')}: no records are taken"
    assert bad(on(1, log_bytes=10 * GIB, **limits)) == [("problem", full)]


def test_a_log_directory_that_is_offline_is_told() -> None:
    """With its reason."""
    what = "broker 1: a log directory is offline, with its replicas: /b: Input/output error"
    offline = on(1, offline_directories=("/b: Input/output error",))
    assert bad(offline) == [("problem", what)]


def test_a_limit_of_files_that_is_near_or_low_is_told() -> None:
    """And none where there is no limit."""
    low = "broker 1 may open 1024 files, and has 40 open"
    assert bad(on(1, open_files_max=1024)) == [("note", low)]
    near = "broker 1 may open 65536 files, and has 60000 open"
    assert bad(on(1, open_files=60_000)) == [("problem", near)]
    few = "broker 1 may open 128 files, and has 101 open"  # it makes no more logs
    assert bad(on(1, open_files=101, open_files_max=128)) == [("problem", few)]
    assert bad(on(1, open_files=49_152)) == []
    assert bad(on(1, open_files_max=-1)) == []


def test_few_things_are_named() -> None:
    """A finding stays a line."""
    assert findings.listed(range(7)) == "0, 1, 2, 3, 4, and 2 more"
    assert Finding(Level.OK, "well") == ("ok", "well", "")


def test_a_log_that_cannot_be_compacted_is_named() -> None:
    """With the broker and the reason."""
    why = "the records from offset 7 on are damaged: the checksum is wrong"
    found = bad(broker(1), broker(2, uncompacted=(UncompactedLog("t", 3, why),)))
    assert found == [(Level.PROBLEM, f"broker 2 cannot compact t-3: {why}")]

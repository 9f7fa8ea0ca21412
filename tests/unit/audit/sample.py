"""An audit that never was, with something of everything: for the tests of its report."""

from collections.abc import Iterator, Sequence

from minibroker.audit.catalogue import CHOSEN
from minibroker.audit.model import Finding, Severity
from minibroker.audit.summary import (
    BrokerSeen,
    CheckRun,
    Committed,
    EpochSpan,
    Lane,
    LedgerCounts,
    PartitionPicture,
    Reading,
    Sizes,
    Stage,
    Summary,
    Unjudged,
    count_findings,
    worst_of,
)

ROOT = "cluster"
NASTY = "<script>alert(1)</script>&\"'\x00\u202e\udcff$verdict"


_FINDINGS = (
    Finding(
        "divergence",
        Severity.ERROR,
        topic="orders",
        partition=0,
        broker=2,
        other_broker=1,
        offset=61_220,
        segment=40_000,
        position=1_048_576,
        detail="identity 6f2a19c044d1e07b in epoch 3 at 1,048,576; broker 1 has"
        " 9be04d7712aa5f10 in epoch 4 at 1,048,544",
    ),
    Finding(
        "lost-write",
        Severity.ERROR,
        topic="orders",
        partition=0,
        broker=2,
        offset=61_223,
        detail="acknowledged with acks=all in ledger.jsonl, line 61,225; the offset holds"
        " another record",
    ),
    Finding(
        "crc",
        Severity.ERROR,
        topic="orders",
        partition=2,
        broker=3,
        offset=12_345,
        segment=0,
        position=4_194_304,
        detail="stored 1f2e3d4c, computed 99aabbcc over 65,536 bytes",
    ),
    Finding(
        "index",
        Severity.WARNING,
        topic="orders",
        partition=0,
        broker=3,
        offset=44_100,
        segment=40_000,
        position=512,
        detail="entry 64 says offset 44,100 is at 7,340,032, where no batch begins",
    ),
    Finding(
        "duplicate",
        Severity.ERROR,
        topic="orders",
        partition=2,
        offset=71_000,
        detail="the record of ledger.jsonl, line 9, is at 12,001 and again at 71,000",
    ),
    Finding(
        "torn-tail",
        Severity.INFO,
        topic="payments",
        partition=1,
        broker=2,
        offset=30_000,
        segment=0,
        position=900_000,
        detail="178 bytes of a batch of 65,536 that was being written when the broker died",
    ),
    Finding("checkpoint", Severity.WARNING, broker=3, detail="recovery-point: 7 of 9 lines"),
    Finding("crc", Severity.WARNING, NASTY, 0, 1, None, 5, 0, 0, detail=NASTY),
)


def sample_findings() -> list[Finding]:
    """One of each severity, some without a place, and one whose text is hostile."""
    return list(_FINDINGS)


def sample_partitions(healthy: int = 6) -> Iterator[PartitionPicture]:
    """Those that the findings are in, and some without."""
    yield _partition("orders", 0, 80_000, [(0, 0), (1, 9_000), (3, 44_000), (4, 61_220)])
    yield _partition("orders", 1, 77_000, [(0, 0), (2, 50_000)])
    yield _partition("orders", 2, 81_500, [(0, 0), (2, 30_000), (5, 30_100), (6, 79_000)])
    yield _partition("payments", 1, 30_000, [(0, 0)])
    yield _partition(NASTY, 0, 10, [(0, 0)])
    for number in range(healthy):
        yield _partition("clicks", number, 1_000 * number, [(0, 0)] if number else [])


def _partition(
    topic: str, partition: int, end: int, starts: Sequence[tuple[int, int]]
) -> PartitionPicture:
    lanes = []
    for broker in (1, 2, 3):
        log_end = end - (end // 4 if broker == 3 and partition == 1 else 0)
        ends = [*(start for _, start in starts[1:]), log_end]
        spans = [
            EpochSpan(epoch, start, min(after, log_end))
            for (epoch, start), after in zip(starts, ends, strict=False)
            if start <= log_end
        ]
        lanes.append(
            Lane(
                broker,
                f"{ROOT}/broker-{broker}/{topic}-{partition}",
                is_leader=broker == 1,
                in_isr=log_end == end,
                log_start=0,
                log_end=log_end,
                high_watermark=log_end - min(log_end, 40 * broker),
                epochs=tuple(spans),
            )
        )
    isr = tuple(lane.broker for lane in lanes if lane.in_isr)
    committed = (Committed("billing", end // 2), Committed("search", end)) if end > 50_000 else ()
    return PartitionPicture(topic, partition, 0, end, tuple(lanes), 1, isr, committed)


def sample_summary(
    findings: Sequence[Finding] = (), partitions: Sequence[PartitionPicture] = ()
) -> Summary:
    """What an audit with these findings would come to."""
    states = ("stopped", "killed", "live")
    lost = sum(finding.check == "lost-write" for finding in findings)
    return Summary(
        started_at_ms=1_794_000_000_000,
        cluster_id="Xw3kq0T9RZ6s1m2vB7uLpA",
        brokers=tuple(
            BrokerSeen(number, f"{ROOT}/broker-{number}", state, 12)
            for number, state in enumerate(states, 1)
        ),
        stages=(Stage("find", 0.2), Stage("session", 6.1), Stage("scan", 3.4), Stage("check", 9.9)),
        sizes=Sizes(36, 41, 96_100_000, 9_120, 1_203_516),
        readings=(Reading("batches", 96_100_000, 6), Reading("index", 96_100_000)),
        ledger=LedgerCounts(401_172, 401_172, 401_172 - lost, 380_000, lost),
        checks=tuple(
            CheckRun(name, "no group has committed anything" if name == "committed-offset" else "")
            for name in CHOSEN
        ),
        counts=count_findings(findings),
        worst=worst_of(findings),
        unjudged=(Unjudged("above the high watermark of a live log", False, "clicks", 1, 3, 12),),
        notes=("In sync is who the metadata says, in epoch 7 of the controller.",),
        partitions=tuple(partitions),
    )

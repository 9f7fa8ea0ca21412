"""Corruptions that a careful liar would choose: of each the verdict, the place and the exit code.

Each lies in a partition of its own of a cluster that was stopped in order, so that the metadata
have one broker in each in-sync set, and remember with what the others left. The files are such as
an honest broker would have left: no checkpoint contradicts a log, no checksum is wrong. All is
judged twice, without a ledger and with ledgers that tell of everything that was sent and committed.
These tell, too, of a topic that had the name before, and one has a line that is cut off in its
middle. A partition's verdict is what the audit would have said of it alone.
"""

import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from minibroker.audit.model import Finding
from minibroker.audit.summary import Summary, count_findings, in_order, worst_of
from minibroker.protocol.constants import OFFSETS_TOPIC
from tests.support.audited import audit
from tests.support.damage import (
    FAULTS,
    SUBTLE_FAULTS,
    Batch,
    Fault,
    Planted,
    Replica,
    append_forged,
    change_header,
    change_records,
    cut_tail,
    delete_log,
    flag_control,
    hide_last_segment,
    lower_checkpoints,
    remove_batch,
    spoil_batch,
    spoil_body,
    swap_batches,
)
from tests.support.made_cluster import (
    BATCHES,
    EPOCHS,
    NODES,
    RECORDS,
    TOPIC,
    Commit,
    group_at,
    make_cluster,
)
from tests.support.made_ledgers import (
    END,
    FORMER_ID,
    partitions_without_retention,
    write_ledgers,
)
from tests.support.processes import EXPORT

LAST = NODES[0]  # the last to stop, and so the only one in the in-sync sets
AT = 5 * RECORDS  # a batch in the middle of a segment
COMMITS_EACH = 2  # in each partition of the offsets topic
CLEAN, FOUND, NOT_CHECKED = range(3)

Described = dict[str, Any]  # a partition in the export
Place = tuple[str, int | None, int | None]  # check, broker, offset


@dataclass(frozen=True)
class Case:
    """A corruption. `plant` does it to the replicas by broker and to what the metadata say.

    `code` and `places` are of an audit without a ledger, `told_code` and `told_places` of one with:
    errors, all of them. `said` is in the sentence of the first, `told` in that of the second.
    """

    plant: Callable[[dict[int, Replica], Described], None]
    code: int
    places: Sequence[Place] = ()
    said: str = ""
    told_code: int | None = None
    told_places: Sequence[Place] | None = None
    told: str = ""


def batch_at(replica: Replica, offset: int = AT) -> Batch:
    return next(batch for batch in replica.batches() if batch.header.base_offset == offset)


def on(*brokers: int, plant: Callable[[Replica], object]) -> Callable[..., None]:
    """The same on the logs of several brokers."""

    def planted(replicas: dict[int, Replica], _: Described) -> None:
        for broker in brokers:
            plant(replicas[broker])

    return planted


def always(fault: Fault) -> Callable[[Replica], Planted]:
    """The fault at the same place wherever it is planted."""
    return lambda replica: fault(replica, random.Random(7))


def value(content: bytes) -> Callable[[Replica], None]:
    """A record in the middle says something else."""

    def plant(replica: Replica) -> None:
        change_records(
            batch_at(replica),
            lambda number, record: record if number else record._replace(value=content),
        )

    return plant


def header(replica: Replica) -> None:
    """A record in the middle has a header."""
    change_records(
        batch_at(replica),
        lambda number, record: record if number else record._replace(headers=(("h", b"1"),)),
    )


def spoil(replica: Replica) -> None:
    """Nobody can read a batch in the middle."""
    spoil_batch(batch_at(replica))


def miscount(replica: Replica) -> None:
    """The same batch has a record more, says its header."""
    change_header(batch_at(replica), record_count=RECORDS + 1)


def spoil_first_and_last(replica: Replica) -> None:
    """Nobody can read a batch of the first segment and one of the last: what is found in the
    segments between them is a table without a row."""
    for offset in (0, END - RECORDS):
        spoil_batch(batch_at(replica, offset))


def forget(*brokers: int, also: Callable[..., None]) -> Callable[..., None]:
    """The metadata do not say with what these left, as those of an older minibroker do not."""

    def planted(replicas: dict[int, Replica], described: Described) -> None:
        described["left"] = [each for each in described["left"] if each["node_id"] not in brokers]
        also(replicas, described)

    return planted


def of_two(also: Callable[..., None]) -> Callable[..., None]:
    """The partition has two replicas only."""

    def planted(replicas: dict[int, Replica], described: Described) -> None:
        delete_log(replicas[3], random.Random(0))
        described["replicas"] = [1, 2]
        described["left"] = described["left"][:2]
        also(replicas, described)

    return planted


def empty(replica: Replica) -> None:
    """The segments hold nothing any more, and the broker's checkpoints know of nothing."""
    for path in replica.directory.glob("*.log"):
        path.write_bytes(b"")
    lower_checkpoints(replica, None)


def empty_with_indexes(replica: Replica) -> None:
    """The same, and the index files are those of an empty log."""
    empty(replica)
    for path in (*replica.directory.glob("*.index"), *replica.directory.glob("*.timeindex")):
        path.write_bytes(b"")


def make_new(replica: Replica) -> None:
    """The log is as one that never had a record."""
    empty_with_indexes(replica)
    for path in replica.directory.glob("*.snapshot"):
        path.unlink()
    (replica.directory / "leader-epoch-checkpoint").write_text("0\n0\n")


def rename_topic(replica: Replica) -> None:
    """The file that names the log's topic names another."""
    text = "version: 0\ntopic_id: AQIDBAUGBwgJCgsMDQ4PEA\n"
    (replica.directory / "partition.metadata").write_text(text)


def raise_high_watermark(replica: Replica) -> None:
    """The broker's checkpoint claims more than any log has."""
    path = replica.data_dir / "replication-offset-checkpoint"
    start = f"{replica.topic} {replica.partition} "
    rows = path.read_text().splitlines(keepends=True)
    raised = (f"{start}{END + 8}\n" if row.startswith(start) else row for row in rows)
    path.write_text("".join(raised))


def first_leader(_: dict[int, Replica], described: Described) -> None:
    """The metadata know of no other leader than the first."""
    described["leader_epoch"] = 0


def both(*plants: Callable[..., None]) -> Callable[..., None]:
    """One after the other."""

    def planted(replicas: dict[int, Replica], described: Described) -> None:
        for plant in plants:
            plant(replicas, described)

    return planted


def left_before(replicas: dict[int, Replica], described: Described) -> None:
    """One of the brokers had stopped some time before the last records came."""
    planted = always(cut_tail)(replicas[3])
    described["left"][2] |= {"log_end": planted.offset, "last_epoch": EPOCHS - 1}


def nothing(replicas: dict[int, Replica], described: Described) -> None:
    """All is as it was."""


def cut_place() -> int:
    """Where `always(cut_tail)` cuts."""
    return random.Random(7).choice(range(BATCHES // 2, BATCHES)) * RECORDS


CUT = cut_place()
OTHER, ANOTHER = value(b"other"), value(b"another")
CANNOT = "which is right cannot be told"
CASES: dict[str, Case] = {
    "nothing: a cluster that was stopped in order": Case(nothing, CLEAN),
    "tails and high watermarks cut on two": Case(
        on(2, 3, plant=always(cut_tail)),
        FOUND,
        [("missing-committed", 2, CUT), ("missing-committed", 3, CUT)],
        told_places=[("unseen", 2, CUT), ("unseen", 3, CUT)],
    ),
    "the same, on the last to stop and another": Case(
        on(1, 2, plant=always(cut_tail)),
        FOUND,
        [("missing-committed", 1, CUT), ("missing-committed", 2, CUT)],
        told_places=[("unseen", 1, CUT), ("unseen", 2, CUT)],
    ),
    "the same, on all": Case(
        on(*NODES, plant=always(cut_tail)),
        FOUND,
        [("missing-committed", broker, CUT) for broker in NODES],
        told_places=[("unseen", broker, CUT) for broker in NODES],
    ),
    "an older copy of one, of which the metadata know more": Case(
        on(2, plant=always(cut_tail)),
        FOUND,
        [("missing-committed", 2, CUT)],
        f"on broker 2 lacks committed records from offset {CUT}",
        told_places=[("unseen", 2, CUT)],
    ),
    "an older copy of one, of which the metadata know nothing": Case(
        forget(2, also=on(2, plant=always(cut_tail))),
        NOT_CHECKED,
        [],
        f"the records from offset {CUT} to {END} are on 2 of 3 replicas",
    ),
    "tails cut on two, of which the metadata know nothing": Case(
        forget(*NODES, also=on(2, 3, plant=always(cut_tail))),
        NOT_CHECKED,
        [],
        f"the records from offset {CUT} to {END} are on 1 of 3 replicas",
    ),
    "logs deleted on two": Case(
        on(2, 3, plant=always(delete_log)),
        FOUND,
        [("missing-committed", 2, 0), ("missing-committed", 3, 0)],
        told_places=[("unseen", 2, 0), ("unseen", 3, 0)],
    ),
    "logs deleted on all": Case(
        on(*NODES, plant=always(delete_log)),
        FOUND,
        [("missing-committed", broker, 0) for broker in NODES],
        told_places=[("unseen", broker, 0) for broker in NODES],
    ),
    "logs deleted on all, of which the metadata know nothing": Case(
        both(forget(*NODES, also=on(*NODES, plant=always(delete_log))), first_leader),
        NOT_CHECKED,
        [],
        "it is empty, and no high watermark says",
        told_code=FOUND,
        told_places=[("unseen", LAST, 0)],
    ),
    "segments emptied on all, of which only index files know": Case(
        forget(*NODES, also=on(*NODES, plant=empty)),
        FOUND,
        [("missing-committed", broker, None) for broker in NODES],
    ),
    "one had stopped before the others": Case(left_before, CLEAN),
    "one leader wrong alone": Case(
        on(LAST, plant=OTHER),
        FOUND,
        [("divergence", LAST, AT)],
        f"at offset {AT}: 2 and 3 agree, 1 differs",
        told_places=[("divergence", LAST, AT), ("lost-write", LAST, AT)],
    ),
    "one follower wrong alone": Case(
        on(3, plant=OTHER),
        FOUND,
        [("divergence", 3, AT)],
        f"at offset {AT}: 1 and 2 agree, 3 differs",
        told_places=[("divergence", 3, AT), ("lost-write", 3, AT)],
    ),
    "two wrong alike: only a ledger knows it": Case(
        on(1, 2, plant=OTHER),
        FOUND,
        [("divergence", 3, AT)],
        "1 and 2 agree, 3 differs",
        told_places=[
            *(("divergence", broker, AT) for broker in (1, 2)),
            *(("lost-write", broker, AT) for broker in (1, 2)),
        ],
    ),
    "all wrong alike: only a ledger knows it": Case(
        on(*NODES, plant=OTHER),
        CLEAN,
        [],
        "",
        told_code=FOUND,
        told_places=[("lost-write", broker, AT) for broker in NODES],
    ),
    "a value changed on two: only a ledger knows which": Case(
        on(2, 3, plant=OTHER),
        FOUND,
        [("divergence", 1, AT)],
        "2 and 3 agree, 1 differs",
        told_places=[("divergence", 2, AT), ("divergence", 3, AT), ("lost-write", 2, AT)],
    ),
    "each another": Case(
        both(on(1, plant=OTHER), on(2, plant=ANOTHER)),
        FOUND,
        [("divergence", broker, AT) for broker in NODES],
        CANNOT,
        told_places=[("divergence", broker, AT) for broker in (1, 2)],
    ),
    "one against one": Case(
        of_two(on(1, plant=OTHER)),
        FOUND,
        [("divergence", 1, AT), ("divergence", 2, AT)],
        CANNOT,
        told_places=[("divergence", 1, AT)],
    ),
    "a header removed on one": Case(
        on(1, 2, plant=header), FOUND, [("divergence", 3, AT)], "1 and 2 agree, 3 differs"
    ),
    "a header removed on all: nothing knows it, for ledgers have no headers": Case(
        on(*NODES, plant=header), CLEAN
    ),
    "batches exchanged on one": Case(
        on(2, plant=always(swap_batches)), FOUND, [("gap", 2, None), ("overlap", 2, None)]
    ),
    "batches exchanged on all": Case(
        on(*NODES, plant=always(swap_batches)), FOUND, [("gap", broker, None) for broker in NODES]
    ),
    "a batch removed on all": Case(
        on(*NODES, plant=always(remove_batch)), FOUND, [("gap", broker, None) for broker in NODES]
    ),
    "a body that nobody can read, on one": Case(
        on(2, plant=always(spoil_body)), FOUND, [("divergence", 2, None)]
    ),
    "a body that nobody can read, on all": Case(
        on(*NODES, plant=always(spoil_body)),
        FOUND,
        [("undecodable", broker, None) for broker in NODES],
    ),
    "a body that nobody can read, on two": Case(
        on(2, 3, plant=always(spoil_body)),
        FOUND,
        [(check, broker, None) for check in ("divergence", "undecodable") for broker in (2, 3)],
        "of 1, 2 and 3 only 1 is whole",
    ),
    "bodies that nobody can read in two ways, on two": Case(
        both(on(2, plant=spoil), on(3, plant=miscount)),
        FOUND,
        [("divergence", 2, None), ("divergence", 3, None)],
        "of 1, 2 and 3 only 1 is whole",
    ),
    "bodies that nobody can read, with segments between them that all can read": Case(
        on(*NODES, plant=spoil_first_and_last),
        FOUND,
        [("undecodable", broker, at) for broker in NODES for at in (0, END - RECORDS)],
    ),
    "records called a control batch, on one": Case(
        on(2, plant=always(flag_control)),
        FOUND,
        [("undecodable", 2, None), ("divergence", 2, None)],
    ),
    "records called a control batch, on all": Case(
        on(*NODES, plant=always(flag_control)),
        FOUND,
        [("undecodable", broker, None) for broker in NODES],
    ),
    "a segment of one that nobody may read": Case(
        on(2, plant=hide_last_segment), NOT_CHECKED, [], "cannot be read: unreadable"
    ),
    "the log of one has the id of another topic": Case(
        on(2, plant=rename_topic), FOUND, [("checkpoint", 2, None)]
    ),
    "a follower's high watermark forged": Case(
        on(3, plant=raise_high_watermark), FOUND, [("hw-beyond-leo", 3, END)]
    ),
    "a batch that nobody sent, on one": Case(
        on(3, plant=lambda replica: append_forged(replica, b"forged")),
        NOT_CHECKED,
        [],
        f"on broker 3: its log ends at {END + 1}",
    ),
    "a batch that nobody sent, on all": Case(
        on(*NODES, plant=lambda replica: append_forged(replica, b"forged")),
        NOT_CHECKED,
        [],
        f"its log ends at {END + 1}, and its broker had stopped in order with {END}",
        told_code=FOUND,
        told_places=[("unexpected", broker, END) for broker in NODES],
    ),
}

LOST = (FOUND, [("lost-commit", LAST, None)])  # what a ledger knows of the commits
OFFSETS_CASES: dict[str, Case] = {
    "nothing: the offsets topic as it was": Case(nothing, CLEAN),
    "emptied on all, but the metadata know how far it went": Case(
        on(*NODES, plant=make_new), FOUND, [("missing-committed", broker, 0) for broker in NODES]
    ),
    "emptied with the high watermarks, but for index files": Case(
        forget(*NODES, also=on(*NODES, plant=empty)),
        FOUND,
        [("missing-committed", LAST, 0)],
    ),
    "emptied with the high watermarks and the index files": Case(
        both(forget(*NODES, also=on(*NODES, plant=empty_with_indexes)), first_leader),
        NOT_CHECKED,
        [],
        f"snapshot of broker 3 tells of records up to {COMMITS_EACH}",
        *LOST,
    ),
    "emptied with all other files, after its leader had changed": Case(
        forget(*NODES, also=on(*NODES, plant=make_new)),
        NOT_CHECKED,
        [],
        "no high watermark says whether it ever had records",
        *LOST,
    ),
    "emptied with all other files: only a ledger of a commit knows it": Case(
        both(forget(*NODES, also=on(*NODES, plant=make_new)), first_leader),
        CLEAN,
        [],
        "",
        *LOST,
        "is committed",
    ),
}


def of_partition(
    summary: Summary, findings: Iterable[Finding], partition: int, topic: str = TOPIC
) -> tuple[Summary, list[Finding]]:
    """What an audit would have said of one partition alone."""
    place = (topic, partition)
    mine = in_order(each for each in findings if (each.topic, each.partition) == place)
    unjudged = tuple(each for each in summary.unjudged if (each.topic, each.partition) == place)
    alone = replace(
        summary,
        counts=count_findings(mine),
        worst=worst_of(mine),
        unjudged=unjudged,
        ledger=None,
    )
    return alone, mine


def make_stopped(
    root: Path,
    count: int,
    plant: Callable[[str, int, Described], None],
    commits: Sequence[Commit] = (),
) -> None:
    """A cluster that was stopped in order, and what is done to each partition."""
    make_cluster(root, count, commits)
    export = root / EXPORT
    exported = json.loads(export.read_text())
    for topic in exported["topics"]:
        end = END if topic["name"] == TOPIC else COMMITS_EACH
        for partition in topic["partitions"]:
            partition |= {"leader": LAST, "isr": [LAST]}
            partition["left"] = [
                {"node_id": node, "last_epoch": EPOCHS - 1, "log_end": end} for node in NODES
            ]
            plant(topic["name"], partition["partition"], partition)
    export.write_text(json.dumps(exported))


def problems(
    summary: Summary, findings: Sequence[Finding], cases: "Cases", *, with_ledger: bool
) -> Iterable[str]:
    """Where the verdicts are not those of the tables."""
    for (topic, number), (name, case) in cases.items():
        alone, mine = of_partition(summary, findings, number, topic)
        code, places, said = case.code, case.places, case.said
        if with_ledger:
            code = code if case.told_code is None else case.told_code
            places = places if case.told_places is None else case.told_places
            said = case.told
        found = [f"{each.check} {each.broker} {each.offset} {each.severity}" for each in mine]
        shown = f"{name}: {alone.sentence}\n    {found}"
        if alone.exit_code != code:
            yield f"exit code {alone.exit_code}, not {code}: {shown}"
        if said and said not in alone.sentence:
            yield f"{said!r} is not said: {shown}"
        for check, broker, offset in places:
            if not any(
                each.check == check
                and each.severity == "error"
                and broker in (None, each.broker)
                and offset in (None, each.offset)
                for each in mine
            ):
                yield f"no {check} on {broker} at {offset}: {shown}"
        accused = {each.broker for each in mine if each.check == "divergence"}
        wanted = {broker for check, broker, _ in places if check == "divergence"}
        if wanted and accused != wanted:
            yield f"accused are {accused}, not {wanted}: {shown}"


Cases = dict[tuple[str, int], tuple[str, Case]]  # by partition, with their names


def all_cases() -> Cases:
    """Each in a partition of its own."""
    numbers = partitions_without_retention(len(CASES))
    placed = {(TOPIC, number): named for number, named in zip(numbers, CASES.items(), strict=True)}
    return placed | {
        (OFFSETS_TOPIC, home): named for home, named in enumerate(OFFSETS_CASES.items())
    }


def test_each_corruption_has_its_verdict(spark: SparkSession, tmp_path: Path) -> None:
    """Without a ledger and with one: the exit code, the places, and who is accused."""
    cases = all_cases()

    def plant(topic: str, partition: int, described: Described) -> None:
        if (topic, partition) in cases:
            brokers = {node: tmp_path / f"broker-{node}" for node in NODES}
            logs = {node: Replica(path, topic, partition) for node, path in brokers.items()}
            cases[topic, partition][1].plant(logs, described)

    count = 1 + max(partition for _, partition in cases)
    read = [0, 5, 10, 15, 20, 25]  # partitions with nothing planted, by the home of their group
    commits = [
        Commit(group_at(home, len(OFFSETS_CASES)), read[home], offset, home)
        for home in range(len(OFFSETS_CASES))
        for offset in (END - 1, END)
    ]
    make_stopped(tmp_path, count, plant, commits)
    unaided = audit(spark, tmp_path, tmp_path / "audit")
    wrong = [*problems(*unaided, cases, with_ledger=False)]
    ledgers = write_ledgers(tmp_path, count, commits)
    judged = audit(spark, tmp_path, tmp_path / "again", ledgers, is_ledger_complete=True)
    wrong += [*problems(*judged, cases, with_ledger=True)]
    wrong += [
        f"nothing is there: {finding}"
        for finding in (*unaided[1], *judged[1])
        if (finding.topic, finding.partition) not in cases
        and finding.check not in ("lost-write", "unseen")
    ]
    assert not wrong, "\n".join(wrong)
    assert {each.partition for each in judged[1] if each.check == "lost-commit"} == {1, 2, 3, 4, 5}
    assert [each.lag for each in judged[0].groups if each.home == 0] == [0]
    reasons = {(each.reason, each.holds_back) for each in judged[0].unjudged if not each.topic}
    former = f"{tmp_path / 'former'}: "
    assert {(why.removeprefix(former), back) for why, back in reasons if former in why} == {
        ("1 lines are not what a ledger holds, the first is line 2", True),
        (
            f"{count - 1} lines, the first is line 3, are of a topic that was deleted,"
            f" {TOPIC} with the id {FORMER_ID.hex()}",
            False,
        ),
    }


PAIRS = 50


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_no_pair_of_faults_is_clean(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Fifty random pairs of faults a run, each in a partition of its own: whatever one fault hides
    of the other, no partition is clean.

    `pytest -m soak 'tests/audit/test_verdicts.py::test_no_pair_of_faults_is_clean[SEED]'` repeats
    one."""
    rng = random.Random(seed)
    numbers = partitions_without_retention(PAIRS)
    said: dict[int, str] = {}

    def plant(_: str, partition: int, described: Described) -> None:
        if partition not in numbers:
            return
        pair = rng.choices([*FAULTS, *SUBTLE_FAULTS], k=2)
        brokers = rng.choices(NODES, k=2)
        for fault, broker in zip(pair, brokers, strict=True):
            try:
                fault(Replica(tmp_path / f"broker-{broker}", TOPIC, partition), rng)
            except (ValueError, StopIteration, FileNotFoundError):
                continue  # the first has left no place for the second
            said[partition] = f"{said.get(partition, '')} {fault.__name__} on {broker}"

    make_stopped(tmp_path, numbers[-1] + 1, plant)
    summary, findings = audit(spark, tmp_path, tmp_path / "audit")
    clean = [
        f"seed {seed}, partition {number}:{said[number]}: {alone.sentence}"
        for number in numbers
        if number in said
        for alone, _ in [of_partition(summary, findings, number)]
        if alone.exit_code == CLEAN
    ]
    assert not clean, "\n".join(clean)

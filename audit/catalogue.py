"""The names and descriptions of the checks: the one source of the words that the command line, the
report and the verdict's sentence use.

`looks_for` completes "finds where ..."; `found` describes a finding in half a sentence, with the
fields {log} ("topic-0"), {broker} and {offset}, which read "?" if a finding has none, and {at}
(" at offset 9"), which is then empty, and {said}, the first clause of the finding's detail.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from minibroker.audit.model import Finding


@dataclass(frozen=True, slots=True)
class Described:
    """The description of one check."""

    looks_for: str
    found: str


# The gravest first: broken promises, then what explains them, then files that brokers rebuild.
DESCRIBED: Final[Mapping[str, Described]] = {
    "lost-write": Described(
        "an acknowledged record is not in its place on a replica, and later ones are there",
        "an acknowledged record of {log} is gone{at} on broker {broker}",
    ),
    "unseen": Described(
        "an acknowledged record lies behind the end of a replica",
        "an acknowledged record of {log}{at} is not on broker {broker}, whose log ends before it",
    ),
    "lost-commit": Described(
        "a commit that a group was told of is not stored, or an older one counts",
        "an acknowledged commit is lost ({log}): {said}",
    ),
    "skipped-read": Described(
        "a group has committed past records that no member has read, by its consumers' ledgers",
        "{said} of {log}",
    ),
    "missing-committed": Described(
        "a replica in the ISR ends below a high watermark",
        "{log} on broker {broker} lacks committed records from offset {offset} on",
    ),
    "divergence": Described(
        "two replicas hold different batches below the high watermark",
        "the replicas of {log} part{at}: {said}",
    ),
    "marker": Described(
        "a replica lacks a transaction's marker, or has another one than the other replicas",
        "the replicas of {log} part over a marker{at}, wrong on broker {broker}: {said}",
    ),
    "transaction-outcome": Described(
        "a transaction's marker is not what its coordinator decided, or partitions of one"
        " transaction ended in different ways",
        "a transaction ended in different ways ({log}{at}): {said}",
    ),
    "transaction-index": Described(
        "a segment's list of aborted transactions lacks one, or names one that was not aborted",
        "a list of aborted transactions of {log} on broker {broker} is wrong: {said}",
    ),
    "compaction": Described(
        "compaction has taken the last record of a key from a replica, or left an older one",
        "compaction of {log} on broker {broker} is wrong{at}: {said}",
    ),
    "inconsistent-offsets": Described(
        "clients were told one offset with two values",
        "offset {offset} of {log} was told with two values",
    ),
    "duplicate": Described(
        "a log holds more equal records than were sent",
        "an acknowledged record of {log} is there twice, again{at}",
    ),
    "unexpected": Described(
        "a log holds a record that no ledger tells of (only with --ledger-complete)",
        "{log} on broker {broker} holds what no producer was told of{at}",
    ),
    "aborted-read": Described(
        "a record that a consumer was shown is absent or different on a replica",
        "a record of {log} that was read is not{at} on broker {broker}",
    ),
    "uncommitted-read": Described(
        "a consumer of committed records was shown one of a transaction that was aborted or is"
        " open",
        "a consumer of committed records was shown one of {log}{at} whose transaction was not"
        " committed: {said}",
    ),
    "crc": Described(
        "a batch below the log end has another CRC than the one it was stored with",
        "{log} is damaged{at} on broker {broker}",
    ),
    "undecodable": Described(
        "a batch with a right CRC holds no records that anybody could read",
        "nobody can read the records of {log}{at} on broker {broker}",
    ),
    "gap": Described(
        "offsets are missing between two batches or segments",
        "{log} on broker {broker} has a gap{at}",
    ),
    "overlap": Described(
        "an offset comes twice in a log, or batches are out of order",
        "{log} on broker {broker} has offset {offset} twice",
    ),
    "sequence-gap": Described(
        "a producer's sequence numbers leave some out",
        "a producer's sequence has a gap in {log}{at} on broker {broker}",
    ),
    "sequence-duplicate": Described(
        "a producer's sequence numbers come twice",
        "a producer's batch is twice in {log}{at} on broker {broker}",
    ),
    "epoch-order": Described(
        "the leader epoch falls within a log",
        "the leader epochs of {log} on broker {broker} fall{at}",
    ),
    "hw-beyond-leo": Described(
        "a replica's high watermark lies above its log end",
        "the high watermark of {log} on broker {broker} lies above its log end",
    ),
    "committed-offset": Described(
        "a group's committed offset lies outside the log or behind records that are gone, or"
        " replicas tell different ones",
        "a group's committed offset is wrong: {log}{at}",
    ),
    "group-record": Described(
        "a record of the offsets topic cannot be read, or is one that no coordinator writes",
        "a record of {log}{at} is wrong: {said}",
    ),
    "open-transaction": Described(
        "a transaction is open at the end of a partition: for longer than its timeout, or though no"
        " coordinator will end it",
        "{said}, in {log}{at}",
    ),
    "segment-name": Described(
        "a file's name is not its first offset",
        "{log} on broker {broker} has a segment with the wrong name",
    ),
    "torn-tail": Described(
        "bytes follow the last whole batch of a log",
        "{log} on broker {broker} ends in half a batch",
    ),
    "epoch-checkpoint": Described(
        "the checkpoint of leader epochs says other than the log",
        "the epoch checkpoint of {log} on broker {broker} differs from its log",
    ),
    "snapshot": Described(
        "a producer snapshot cannot be read, or says other than the batches before it",
        "a producer snapshot of {log} on broker {broker} is wrong",
    ),
    "index": Described(
        "an index entry points elsewhere than at a batch that covers it",
        "an index of {log} on broker {broker} is wrong",
    ),
    "checkpoint": Described(
        "a checkpoint or metadata file cannot be read, or names what cannot be",
        "a file of broker {broker} is wrong: {said}",
    ),
}

GRAVITY: Final = {name: rank for rank, name in enumerate(DESCRIBED)}
# The checks that a user may choose; reading the inputs always performs the others.
CHOSEN: Final = tuple(name for name in DESCRIBED if name != "checkpoint")


def in_words(finding: Finding) -> str:
    """Return a finding as half a sentence, such as `t-0 is damaged at offset 9 on broker 2`."""
    described = DESCRIBED.get(finding.check)
    log = f"{finding.topic}-{finding.partition}" if finding.topic is not None else "?"
    return (described.found if described else finding.check + " in {log}").format(
        log=log,
        broker="?" if finding.broker is None else finding.broker,
        offset="?" if finding.offset is None else f"{finding.offset:,}",
        at="" if finding.offset is None else f" at offset {finding.offset:,}",
        said=finding.detail.partition(";")[0],
    )

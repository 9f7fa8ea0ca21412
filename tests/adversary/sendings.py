"""What producers were told in an adversarial run, held against the log."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.adversary.verdict import Identities, Process, Run, Verdict, count_event

# Failures that a close explains.
CLOSED = {"ClientClosed"}


@dataclass
class _Sending:
    """What one incarnation of a producer knows."""

    who: str
    begun: set[int] = field(default_factory=set)  # `send` was called and has ended
    unknown: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    delivered: set[int] = field(default_factory=set)
    failed: dict[int, str] = field(default_factory=dict)
    report: tuple[int, int, int] | None = None
    closed_by: str = ""
    is_cut: bool = False  # a close was cancelled, and gave up what was not delivered
    how: str = ""  # it has ended; empty: it was killed
    left: str = ""
    warnings: list[str] = field(default_factory=list)


def judge_producers(run: Run, log: Mapping[int, array], ids: Identities, verdict: Verdict) -> None:
    places: dict[int, tuple[int, int]] = {}
    for partition, values in log.items():
        latest: dict[int, int] = {}
        for offset, number in enumerate(values):
            if number in places:
                value = run.log[partition][offset][:60]
                text = f"{value!r} at {places[number]} and {(partition, offset)}"
                verdict.findings.add("doubles", text)
            places[number] = partition, offset
            incarnation, seq = number >> 32, number & 0xFFFFFFFF
            if seq <= latest.get(incarnation, -1):
                text = f"p{partition} {offset}: {run.log[partition][offset][:60]!r}"
                verdict.findings.add("out of order", text)
            latest[incarnation] = seq
    verdict.counts["records in the log"] = len(places)
    for process in run.producers:
        for sending in _sendings(process, log, ids, verdict):
            _judge_sending(process, sending, places, ids, verdict)


def _sendings(
    process: Process, log: Mapping[int, array], ids: Identities, verdict: Verdict
) -> Iterator[_Sending]:
    sending: _Sending | None = None
    for event in process.events:
        words = event.words
        count_event(process, event, verdict)
        if event.kind == "begin":
            if sending is not None:
                yield sending
            sending = _Sending(f"{process.name}:{words[0]}")
        if sending is None:
            continue
        match event.kind:
            case "sent":
                sending.begun.update(range(int(words[0]), int(words[1])))
            case "unknown":
                sending.unknown.add(int(words[0]))
            case "refused":
                sending.refused.add(int(words[0]))
            case "delivered":
                _note_delivery(sending, words, log, ids, verdict)
            case "failed":
                sending.failed |= dict.fromkeys(map(int, words[2:]), words[1])
            case "closed" if len(words) == 4:
                delivered, failed, undelivered = map(int, words[1:])
                sending.report, sending.closed_by = (delivered, failed, undelivered), words[0]
            case "cancelled":
                sending.is_cut = True
            case "warning":
                sending.warnings.append(event.text)
            case "leaving":
                sending.left = words[0]
            case "end":
                sending.how = words[1]
    if sending is not None:
        yield sending


def _note_delivery(
    sending: _Sending,
    words: Sequence[str],
    log: Mapping[int, array],
    ids: Identities,
    verdict: Verdict,
) -> None:
    partition, base = int(words[0]), int(words[1])
    verdict.counts["records acknowledged"] += len(words) - 2
    for index, word in enumerate(words[2:]):
        seq = int(word)
        if seq in sending.delivered or seq in sending.failed:
            verdict.findings.add("told twice", f"{sending.who} {seq}")
        sending.delivered.add(seq)
        offset = base + index
        values = log[partition]
        if base >= 0 and not (
            offset < len(values) and values[offset] == ids.number(sending.who.encode(), seq)
        ):
            text = f"{sending.who} {seq} was acknowledged at p{partition} {offset}: not there"
            verdict.findings.add("losses of acknowledged records", text)


def _judge_sending(
    process: Process,
    sending: _Sending,
    places: Mapping[int, tuple[int, int]],
    ids: Identities,
    verdict: Verdict,
) -> None:
    findings, who = verdict.findings, sending.who
    stored = {seq: ids.number(who.encode(), seq) in places for seq in sending.begun}
    for seq in sending.delivered:
        if ids.number(who.encode(), seq) not in places:
            text = f"{who} {seq} was acknowledged, and is nowhere"
            findings.add("losses of acknowledged records", text)
    for seq in sending.refused:
        if stored.get(seq) or seq in sending.delivered:
            findings.add("refused and sent", f"{who} {seq}")
    for seq, error in sending.failed.items():
        if error not in CLOSED:
            findings.add("failed deliveries", f"{who} {seq}: {error}")
    if not sending.how:
        return  # killed: what it was told is all that it knows
    taken = sending.begun - sending.unknown - sending.refused
    silent = taken - sending.delivered - sending.failed.keys()
    if sending.report is not None:
        told = sum(sending.report)
        most = len(taken) + len(sending.unknown)
        if not len(taken) <= told <= most:
            text = (
                f"{who} was closed by {sending.closed_by}, the report tells of {told}"
                f" {sending.report}; `send` took {len(taken)}"
                f" and {len(sending.unknown)} were interrupted"
            )
            findings.add("records missing in a close's report", text, abs(len(taken) - told))
    elif silent and sending.how in ("block", "close", "exit"):
        lost = sum(not stored[seq] for seq in silent)
        text = f"{who} ended by {sending.how}: {len(silent)} without a word, {lost} not in the log"
        findings.add("records silently dropped by a producer", text, len(silent))
    elif silent and (sending.how == "interrupted" or sending.is_cut):
        is_told = any(sending.warnings) or "records" in process.errors
        verdict.counts["records dropped by an interrupted producer"] += len(silent)
        if not is_told:
            text = f"{who} was left by an interrupt: {len(silent)} without a word"
            findings.add("records silently dropped by a producer", text, len(silent))

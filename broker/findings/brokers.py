"""Findings about brokers: their addresses, fences, readiness, clocks, leases and versions."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

from minibroker.broker.findings import Finding, Level, listed
from minibroker.broker.findings.storage import of_disk, of_files, of_log_bytes

if TYPE_CHECKING:
    from minibroker.protocol.messages.brokers import DescribeBrokerResponse, MachineDescription
    from minibroker.protocol.types import Endpoint, NamedEndpoint

CLOCKS_MS_MAX: Final = 1_000  # how far clocks may differ
RENEWAL_MS_HIGH: Final = 100


@dataclass(frozen=True, slots=True)
class BrokerSeen:
    """A broker, asked at the address that clients of the listener we connected to are told.

    It has an `answer` or a `failure`. Its wall clock is `clock_ms` ahead of ours, give or take
    `clock_error_ms`. `is_fenced`: the controller does not hear it.
    """

    node_id: int
    address: "Endpoint"
    answer: "DescribeBrokerResponse | None" = None
    failure: str = ""
    clock_ms: float = 0.0
    clock_error_ms: float = 0.0
    is_fenced: bool = False


@dataclass(frozen=True, slots=True)
class ListenerTried:
    """Another listener of a broker: the id of the broker that answers there, or why none does."""

    node_id: int
    listener: "NamedEndpoint"
    found: int | None = None
    failure: str = ""


def of_bootstrap(named: Iterable[BrokerSeen]) -> list[Finding]:
    """Check that the bootstrap brokers answer."""
    return [
        Finding(
            Level.PROBLEM,
            each.failure,
            "start that broker, or name another one with -b; several are joined by commas",
        )
        for each in named
        if each.answer is None
    ]


def of_brokers(
    seen: Iterable[BrokerSeen], tried: Iterable[ListenerTried], version_here: str
) -> Iterator[Finding]:
    """Check everything about the brokers themselves. `version_here` is this command's."""
    brokers = list(seen)
    answers = {each.node_id: each.answer for each in brokers if each.answer is not None}
    machines = {node: answer.machine for node, answer in answers.items() if answer.machine}
    # First: whatever else is wrong may come of a full disk, or of too few files.
    for node_id, machine in machines.items():
        for offline in machine.offline_directories:
            yield Finding(
                Level.PROBLEM,
                f"broker {node_id}: a log directory is offline, with its replicas: {offline}",
                "mend or mount that disk, and restart the broker",
            )
        directory = f"broker {node_id}: {machine.data_directory}"
        sizes = machine.disk_free_bytes, machine.disk_total_bytes, machine.disk_free_bytes_min
        yield from of_disk(directory, *sizes)
        yield from of_log_bytes(directory, machine.log_bytes, machine.log_bytes_max)
        yield from of_files(f"broker {node_id}", machine.open_files, machine.open_files_max)
    yield from of_addresses(brokers)
    yield from chain.from_iterable(map(of_listener, tried))
    yield from of_fences(brokers)
    yield from of_readiness(answers)
    yield from of_clocks(brokers)
    yield from of_clock_jumps(answers)
    yield from of_leases(answers)
    yield from of_defects(answers)
    yield from of_uncompacted(answers)
    yield from of_versions(machines, version_here)


def of_addresses(seen: Iterable[BrokerSeen]) -> Iterator[Finding]:
    """Check that each broker answers at its advertised address."""
    right = []
    for each in seen:
        if each.answer is None:
            yield Finding(
                Level.PROBLEM,
                f"clients of broker {each.node_id} are sent where it is not: {each.failure}",
                f"see whether broker {each.node_id} runs, whether its port is open for this"
                " machine, and whether its advertised.listeners names where it is",
            )
        elif each.answer.node_id != each.node_id:
            yield Finding(
                Level.PROBLEM,
                f"clients are sent to {each.address} for broker {each.node_id}, and broker"
                f" {each.answer.node_id} answers there",
                "give each broker an address of its own in advertised.listeners",
            )
        else:
            right.append(f"broker {each.node_id} at {each.address}")
    if right:
        yield Finding(
            Level.OK,
            f"reached where clients are sent, Kafka's and minibroker's own: {', '.join(right)}",
        )


def of_listener(tried: ListenerTried) -> Iterator[Finding]:
    """Check another listener. It may be for a network that we are not in, so this is a note."""
    if tried.found == tried.node_id:
        return
    what = f"cannot be reached from here ({tried.failure})"
    if tried.found is not None:
        what = f"is broker {tried.found} if called from here"
    yield Finding(
        Level.NOTE,
        f"{tried.listener}, a listener of broker {tried.node_id}, {what}",
        "nothing, if that listener is for another network than this one; else correct"
        f" advertised.listeners of broker {tried.node_id}",
    )


def of_fences(seen: Iterable[BrokerSeen]) -> Iterator[Finding]:
    """Report the brokers that are registered but that the controller does not hear."""
    for each in seen:
        if each.is_fenced:
            yield Finding(
                Level.PROBLEM,
                f"broker {each.node_id} is fenced: it is registered, but the controller does not"
                " hear it, so others lead in its place",
                f"see whether broker {each.node_id} and the controller reach each other, and"
                f" whether broker {each.node_id} hangs",
            )


def of_readiness(answers: "Mapping[int, DescribeBrokerResponse]") -> Iterator[Finding]:
    """Report whether each broker is ready, and whether all are of one cluster."""
    for node_id, answer in answers.items():
        if not answer.is_ready:
            yield Finding(
                Level.PROBLEM,
                f"broker {node_id} is not ready: {'; '.join(answer.reasons)}",
                "wait if it has just started; else look at its log",
            )
    if ready := [node_id for node_id, answer in answers.items() if answer.is_ready]:
        yield Finding(Level.OK, f"ready: broker {listed(ready)}")
    if len(clusters := {answer.cluster_id for answer in answers.values() if answer.cluster_id}) > 1:
        yield Finding(
            Level.PROBLEM,
            f"the brokers are of different clusters: {listed(sorted(clusters))}",
            "see whether all have the same metadata.store and metadata.store.prefix",
        )


def of_clocks(seen: Iterable[BrokerSeen]) -> Iterator[Finding]:
    """Compare the wall clocks, allowing for the error of measurement over the network."""
    answered = [each for each in seen if each.answer is not None]
    if not answered:
        return
    fast = max(answered, key=lambda each: each.clock_ms)
    slow = min(answered, key=lambda each: each.clock_ms)
    apart = fast.clock_ms - slow.clock_ms
    sync = "have all machines set their clocks by NTP: retention and timestamps go by them"
    if apart - fast.clock_error_ms - slow.clock_error_ms > CLOCKS_MS_MAX:
        yield Finding(
            Level.PROBLEM,
            f"the clock of broker {fast.node_id} is {apart / 1000:.1f} s ahead of that of broker"
            f" {slow.node_id}",
            sync,
        )
        return
    yield Finding(Level.OK, f"the brokers' clocks are within {max(1, round(apart))} ms")
    ahead = fast if fast.clock_ms + slow.clock_ms > 0 else slow
    if abs(ahead.clock_ms) - ahead.clock_error_ms > CLOCKS_MS_MAX:
        side = "behind" if ahead.clock_ms > 0 else "ahead of"
        seconds = abs(ahead.clock_ms) / 1000
        yield Finding(Level.NOTE, f"this machine's clock is {seconds:.1f} s {side} theirs", sync)


def of_clock_jumps(answers: "Mapping[int, DescribeBrokerResponse]") -> Iterator[Finding]:
    """Report the brokers whose wall clock has jumped, and is not believed yet."""
    for node_id, answer in answers.items():
        if not answer.clock_settles_in_ms:
            continue
        side = "forward" if answer.clock_jump_ms > 0 else "back"
        minutes = max(1, round(answer.clock_settles_in_ms / 60_000))
        yield Finding(
            Level.PROBLEM,
            f"the wall clock of broker {node_id} jumped {side} by"
            f" {abs(answer.clock_jump_ms) / 1000:,.0f} s",
            f"if its time is wrong, correct it within {minutes} min: until then nothing expires"
            " because of the jump, after that retention, producers and offsets go by it",
        )


def of_leases(answers: "Mapping[int, DescribeBrokerResponse]") -> Iterator[Finding]:
    """Check how fast the metadata store renews the brokers' leases."""
    slowest, is_good = 0.0, bool(answers)
    for node_id, answer in answers.items():
        took_ms = answer.renewal_us / 1000
        session_ms = answer.session_timeout_ms
        slowest = max(slowest, took_ms)
        is_good &= took_ms <= RENEWAL_MS_HIGH and answer.renewal_age_ms <= session_ms
        if answer.renewal_age_ms > session_ms:
            yield Finding(
                Level.PROBLEM,
                f"broker {node_id} has not reached the metadata store for"
                f" {answer.renewal_age_ms / 1000:.1f} s",
                "see whether the store runs and can be reached from that broker",
            )
        elif took_ms > session_ms / 4:
            yield Finding(
                Level.PROBLEM,
                f"the metadata store took {took_ms:.0f} ms over the lease of broker {node_id}, of"
                f" {session_ms} ms that it lasts",
                "give the store a faster disk or network, or raise broker.session.timeout.ms",
            )
        elif took_ms > RENEWAL_MS_HIGH:
            yield Finding(
                Level.NOTE,
                f"the metadata store took {took_ms:.0f} ms over the lease of broker {node_id}",
                "look at the store's disk and network before it gets slower",
            )
    if is_good:
        text = f"the metadata store answers the brokers within {max(1, round(slowest))} ms"
        yield Finding(Level.OK, text)


def of_uncompacted(answers: "Mapping[int, DescribeBrokerResponse]") -> Iterator[Finding]:
    """Report the logs that brokers cannot compact."""
    for node_id, answer in sorted(answers.items()):
        for log in answer.uncompacted:
            yield Finding(
                Level.PROBLEM,
                f"broker {node_id} cannot compact {log.topic}-{log.partition}: {log.reason}",
                "see `minibroker log dump`; if another replica is sound, stop the broker, move the"
                " log's directory away, and start it: it copies the log again",
            )


def of_defects(answers: "Mapping[int, DescribeBrokerResponse]") -> Iterator[Finding]:
    """Report the defects of brokers that requests have met."""
    for node_id, answer in answers.items():
        for defect in answer.defects:
            request = f"a {defect.request} request" if defect.request else "a request"
            yield Finding(
                Level.PROBLEM,
                f"broker {node_id} has a defect: it failed to {defect.stage} {request}"
                f" {defect.count} times ({defect.place})",
                "report it with the traceback in that broker's log; each time only that request"
                " failed",
            )


def of_versions(
    machines: "Mapping[int, MachineDescription]", version_here: str
) -> Iterator[Finding]:
    """Check that all brokers, and this command, run the same minibroker and Python."""
    for what, versions in (
        ("minibroker", {node: one.software_version for node, one in machines.items()}),
        ("Python", {node: one.python_version for node, one in machines.items()}),
    ):
        kinds = sorted(set(versions.values()))
        if len(kinds) > 1:
            text = listed(f"broker {node} has {version}" for node, version in versions.items())
            yield Finding(
                Level.NOTE,
                f"the brokers run different versions of {what}: {text}",
                "finish the upgrade, one broker after another",
            )
        elif kinds:
            yield Finding(Level.OK, f"all brokers run {what} {kinds[0]}")
    if others := {one.software_version for one in machines.values()} - {version_here}:
        yield Finding(
            Level.NOTE,
            f"this command is minibroker {version_here}, not {listed(sorted(others))}",
            "use the brokers' version, so that each knows what the other means",
        )

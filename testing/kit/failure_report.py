"""What the report of a failed test shows of a cluster: this test alone, on one clock.

The clock is the time of day, as in the brokers' logs and the sentences of a `History`. Faults, the
lines of all brokers and the requests that met a fault or an error are in one list. Below it are the
requests of each client in numbers, its latest ones, and the last lines of each service.
"""

import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from minibroker.testing.kit.broker_process import BrokerFailed
from minibroker.testing.kit.node_orders import OrderRefused
from minibroker.testing.kit.requests import Request
from minibroker.testing.kit.wall_time import time_of_day

if TYPE_CHECKING:
    from minibroker.testing.kit.cluster import KafkaCluster

LINES_MAX: Final = 40  # of one broker's log, and of requests in the list
LATEST_MAX: Final = 5  # requests of one client
# The beginning of a line in a broker's log: "[2026-11-29 13:43:28,013] INFO ".
STAMP: Final = re.compile(r"^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3})\] ")


class Line(NamedTuple):
    """A line of the list, with its Unix time in seconds."""

    at_s: float
    text: str

    def __str__(self) -> str:
        return f"{time_of_day(self.at_s)}  {self.text}"


def failure_report(cluster: "KafkaCluster") -> str:
    """Return what happened to a cluster in its current test, also when the cluster has ended."""
    began_s, requests = cluster.began_at, _requests_of_test(cluster)
    lines = [Line(began_s + each.at_s, each.text) for each in cluster.timeline_of_test()]
    for node_id in cluster.node_ids:
        told = list(log_lines(cluster.log_of_test(node_id), lines[0].at_s, f"broker {node_id}"))
        lines += _last(told, f"broker {node_id}: earlier lines are in broker-{node_id}.log")
    notable = [each for each in requests if each.errors or each.has_met_fault]
    lines += _last(
        [Line(began_s + each.at_s, request_text(each)) for each in notable],
        "earlier requests with errors are left out",
    )
    shown = ["What happened in this test:", *map(str, sorted(lines, key=lambda line: line.at_s))]
    shown += ["", *_requests_shown(requests, began_s)]
    for service in cluster.processes:
        shown += ["", f"The last lines of {service.name}, which {service.state}:"]
        shown.append(service.last_lines())
    if kept := cluster.keep():
        shown += ["", f"The data directories will be kept in {kept}"]
    return "\n".join(shown)


def log_lines(text: str, began_s: float, source: str) -> Iterator[Line]:
    """Yield the lines of a broker's log. One without a time has that of the line before it."""
    at_s = began_s
    for line in text.splitlines():
        stamp = STAMP.match(line)
        if stamp:
            at_s = time.mktime(time.strptime(stamp[1], "%Y-%m-%d %H:%M:%S"))
            at_s += int(stamp[2]) / 1000
            line = line[stamp.end() :]
        yield Line(at_s, f"{source}: {line}")


def request_text(request: Request) -> str:
    """Return what a client has asked a broker, and the outcome."""
    names = [f"{topic}-{number}" if number >= 0 else topic for topic, number in request.partitions]
    if request.offsets:
        pairs = zip(names, request.offsets, strict=False)
        names = [f"{name} at {offset}" if offset >= 0 else name for name, offset in pairs]
    about = f" {', '.join(names)}" if names else ""
    group = f" group {request.group_id!r}" if request.group_id else ""
    outcome = "no response" if request.errors is None else ", ".join(request.errors) or "done"
    fault = ", by a fault of the test" if request.has_met_fault else ""
    asked = f"client {request.client_id!r} asked broker {request.broker}"
    return f"{asked}: {request.api}{about}{group}: {outcome}{fault}"


def _requests_of_test(cluster: "KafkaCluster") -> list[Request]:
    """The requests of clients since the test began; none that cannot be asked for."""
    try:
        found = cluster.requests()
    except (BrokerFailed, OrderRefused):
        return []
    began_s = cluster.timeline_of_test()[0].at_s
    return [each for each in found if each.at_s >= began_s]


def _requests_shown(requests: Sequence[Request], began_s: float) -> Iterator[str]:
    if not requests:
        yield "No client has asked the brokers anything in this test."
        return
    yield "What the clients asked in this test:"
    by_client: dict[str | None, list[Request]] = defaultdict(list)
    for each in requests:
        by_client[each.client_id].append(each)
    for client_id, asked in by_client.items():
        counts = Counter(each.api for each in asked)
        numbers = ", ".join(f"{count} {api}" for api, count in counts.most_common())
        yield f"client {client_id!r}: {numbers}; the latest:"
        for each in asked[-LATEST_MAX:]:
            yield f"  {Line(began_s + each.at_s, request_text(each))}"


def _last(lines: Sequence[Line], more: str) -> list[Line]:
    """The last lines, below one that says that there are more."""
    if len(lines) <= LINES_MAX:
        return [*lines]
    shown = lines[-LINES_MAX:]
    return [Line(shown[0].at_s, more), *shown]

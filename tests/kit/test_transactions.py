"""Programs that read, transform and write in transactions meet faults of each request, and a
history judges what they did."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread

import pytest

from minibroker.testing import Fault, History, KafkaCluster
from tests.kit.transformers import (
    AIOKAFKA,
    CONFLUENT,
    OURS,
    Transformer,
    fill,
    judge,
)

# An error of each request after which its sender tries again.
ERRORS = {
    "FIND_COORDINATOR": "COORDINATOR_NOT_AVAILABLE",
    "INIT_PRODUCER_ID": "CONCURRENT_TRANSACTIONS",
    "ADD_PARTITIONS_TO_TXN": "CONCURRENT_TRANSACTIONS",
    "ADD_OFFSETS_TO_TXN": "COORDINATOR_LOAD_IN_PROGRESS",
    "TXN_OFFSET_COMMIT": "COORDINATOR_LOAD_IN_PROGRESS",
    "END_TXN": "COORDINATOR_LOAD_IN_PROGRESS",
    "PRODUCE": "NOT_LEADER_OR_FOLLOWER",
    "WRITE_TXN_MARKERS": "NOT_LEADER_OR_FOLLOWER",
}
# What brokers send each other for transactions, by the client id.
OF_BROKERS = {"coordinator-1": "WRITE_TXN_MARKERS", "verifier-1": "ADD_PARTITIONS_TO_TXN"}
# A marker that is not written at all shows only if the next one of the producer is not either.
FAILURES = {"WRITE_TXN_MARKERS": 6}
Inject = Callable[[KafkaCluster, str, str], Fault]


def fail(cluster: KafkaCluster, api: str, client_id: str) -> Fault:
    """Refuse the first request, or some."""
    return cluster.fail(api, ERRORS[api], times=FAILURES.get(api, 1), client_id=client_id)


def drop(cluster: KafkaCluster, api: str, client_id: str) -> Fault:
    """Serve the first request, and lose its response."""
    return cluster.drop_response(api, times=1, client_id=client_id)


def hold(cluster: KafkaCluster, api: str, client_id: str) -> Fault:
    """Serve the first request when the fault is undone."""
    return cluster.hold(api, times=1, client_id=client_id)


def met(cluster: KafkaCluster, client_id: str, since_s: float) -> set[str]:
    """The requests of a client that have met a fault."""
    return {
        each.api
        for each in cluster.requests(client_id)
        if each.has_met_fault and each.at_s >= since_s
    }


def _met(inject: Inject, program: Transformer, *marks: pytest.MarkDecorator) -> object:
    return pytest.param(inject, program, id=f"{inject.__name__}-{program.name}", marks=marks)


def test_the_page_names_these_faults() -> None:
    """docs/testing.md has each request, with its error here."""
    page = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")
    table = page.partition("<!-- faults of transactions: begin -->")[2].partition("<!--")[0]
    rows = [line.strip("| ").split(" | ") for line in table.strip().splitlines()[2:]]
    assert {row[0]: row[-1] for row in rows} == ERRORS
    assert [each for each in OF_BROKERS if f'`client_id="{each}"`' not in table] == []


@pytest.mark.parametrize(
    ("inject", "program"),
    [
        _met(fail, OURS),
        _met(fail, CONFLUENT),
        _met(fail, AIOKAFKA),
        _met(drop, OURS, pytest.mark.soak),
        _met(drop, CONFLUENT, pytest.mark.soak),
        _met(hold, OURS),
        _met(hold, CONFLUENT, pytest.mark.soak),
    ],
)
def test_a_program_survives_faults_of_each_request(
    kafka_broker: KafkaCluster, inject: Inject, program: Transformer
) -> None:
    """Of its own requests, and of those that brokers send each other: each order is transformed
    once, and its offset is committed with it."""
    source, target, history = kafka_broker.topic(), kafka_broker.topic(), History()
    fill(kafka_broker, source, history)
    kafka_broker.note("the orders are there")
    began_s = kafka_broker.timeline()[-1].at_s
    apis = program.apis
    if (inject, program) == (drop, CONFLUENT):
        # After it librdkafka may send no TXN_OFFSET_COMMIT: docs/kafka.md, "Bugs of clients".
        apis -= {"PRODUCE"}
    wanted = [(api, source) for api in sorted(apis)]
    wanted += [(api, client_id) for client_id, api in OF_BROKERS.items()]
    with ExitStack() as stack:
        faults = {each: stack.enter_context(inject(kafka_broker, *each)) for each in wanted}
        is_done = Event()

        def release() -> None:
            """Undo each fault that holds a request."""
            while not is_done.wait(0.02):
                for (api, client_id), fault in faults.items():
                    if inject is hold and api in met(kafka_broker, client_id, began_s):
                        fault.undo()

        releasing = Thread(target=release)
        releasing.start()
        try:
            program.run(kafka_broker, source, target, history)
            judge(kafka_broker, source, target, history)
        finally:
            is_done.set()
            releasing.join()
        for client_id in {client_id for _, client_id in wanted}:
            apis = {api for api, of in wanted if of == client_id}
            assert met(kafka_broker, client_id, began_s) == apis

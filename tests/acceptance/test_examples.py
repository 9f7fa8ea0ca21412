"""Each program of `examples/` does what its head says.

The Spark job runs in tests/audit/network/test_example.py; test_typing.py checks the types of all.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import httpx

from minibroker.client.blocking import Consumer, Producer
from tests.installed import ROOT
from tests.support.processes import BrokerProcess

EXAMPLES = ROOT / "examples"


def run(name: str, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run an example as its head says."""
    return subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | variables,
    )


def values_in(address: str, topic: str, count: int) -> Counter[bytes]:
    """So many values of a topic."""
    with Consumer(address, auto_offset_reset="earliest") as consumer:
        consumer.assign_topics(topic)
        found: list[bytes] = []
        while len(found) < count:
            records = consumer.poll(30)
            assert records, found
            found += [record.value or b"" for record in records]
    return Counter(found)


def fill(address: str, topic: str) -> None:
    """Thirty records with three keys."""
    with Producer(address) as producer:
        for number in range(30):
            producer.send(topic, b"value %d" % number, b"key %d" % (number % 3))


def test_the_batch_job_stores_all_lines(broker: BrokerProcess, tmp_path: Path) -> None:
    """And says how many."""
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"line {number}\n" for number in range(500)))
    done = run("batch_job.py", broker.address, "example-lines", str(path))
    assert (done.returncode, done.stdout) == (0, "500 lines are stored\n"), done.stderr
    found = values_in(broker.address, "example-lines", 500)
    assert found == Counter(b"line %d" % number for number in range(500))


def test_the_consumer_commits_what_it_has_written(broker: BrokerProcess) -> None:
    """A second one begins where the first has ended."""
    fill(broker.address, "example-keys")
    arguments = (broker.address, "example-keys", "example-counters")
    done = run("manual_commits.py", *arguments, "30")
    assert done.stdout == "key 0 10\nkey 1 10\nkey 2 10\n", done.stderr
    assert "reading [0]" in done.stderr
    with Producer(broker.address) as producer:
        producer.send("example-keys", b"one more", b"key 9")
    assert run("manual_commits.py", *arguments, "1").stdout == "key 9 1\n"


def test_the_worker_sends_a_result_for_each_record(broker: BrokerProcess) -> None:
    """Once, and in the same partition's order."""
    fill(broker.address, "example-tasks")
    arguments = (broker.address, "example-tasks", "example-results", "example-workers", "30")
    done = run("asyncio_worker.py", *arguments)
    assert done.returncode == 0, done.stderr
    found = values_in(broker.address, "example-results", 30)
    assert found == Counter(b"VALUE %d" % number for number in range(30))


def test_the_notebook_runs(broker: BrokerProcess) -> None:
    """From the first cell to the last."""
    done = run(
        "notebook.py", MINIBROKER_BOOTSTRAP=broker.address, NOTEBOOK_TOPIC="example-notebook"
    )
    assert "{'even': 50, 'odd': 50}" in done.stdout, done.stderr
    assert "CloseReport(delivered=100, failed=0, undelivered=0)" in done.stdout


def test_the_service_takes_events_under_load(broker: BrokerProcess) -> None:
    """Four hundred requests, fifty at once: each is answered with a place of its own, and read."""

    async def main() -> list[dict[str, Any]]:
        app = service.application(broker.address, "example-events")
        transport = httpx.ASGITransport(app=app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://service") as client,
        ):
            limit = asyncio.Semaphore(50)

            async def post(number: int) -> dict[str, Any]:
                async with limit:
                    answer = await client.post("/events", content=b"event %d" % number)
                assert answer.status_code == 202, answer.text
                return dict(answer.json())

            places = await asyncio.gather(*map(post, range(400)))
            last = max(place["offset"] for place in places)
            while not last_is_read(await get(client), places, last):
                pass
            return places

    async def get(client: httpx.AsyncClient) -> list[str]:
        await asyncio.sleep(0.01)  # a request inside of the process lets no other task run
        return list((await client.get("/events")).json())

    def last_is_read(seen: list[str], places: list[dict[str, Any]], last: int) -> bool:
        number = next(n for n, place in enumerate(places) if place["offset"] == last)
        return f"event {number}" in seen

    spec = spec_from_file_location("service", EXAMPLES / "service.py")
    assert spec is not None
    assert spec.loader is not None
    service: Any = module_from_spec(spec)
    spec.loader.exec_module(service)
    places = asyncio.run(main())
    assert len({json.dumps(place) for place in places}) == 400

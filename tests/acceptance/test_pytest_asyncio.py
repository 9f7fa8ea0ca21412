"""The clients for asyncio in a user's tests, with pytest-asyncio."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.processes import BrokerProcess

TESTS = """
import os

import pytest_asyncio

from minibroker.client.asyncio import Consumer, Producer

ADDRESS = os.environ["MINIBROKER_BOOTSTRAP"]


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def producer():
    async with Producer(ADDRESS) as producer:
        yield producer


@pytest_asyncio.fixture
async def consumer():
    consumer = await Consumer(ADDRESS, auto_offset_reset="earliest").start()
    yield consumer
    await consumer.close()


async def test_what_is_sent_is_read(producer, consumer):
    place = await producer.send_and_wait("pytest", b"1")
    await consumer.assign_topics("pytest")
    assert [record.offset for record in await consumer.poll(30)] == [place.offset] == [0]


async def test_in_a_loop_of_its_own(producer, consumer):
    await consumer.assign_topics("pytest")
    async for record in consumer:
        assert record.value == b"1"
        break
    assert (await producer.send_and_wait("pytest", b"2")).offset == 1
"""


def test_fixtures_and_tests_have_loops_of_their_own(broker: BrokerProcess, tmp_path: Path) -> None:
    """A producer of the session serves tests that each run in another event loop."""
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nfilterwarnings = error\n"
        "asyncio_default_fixture_loop_scope = function\n"
    )
    (tmp_path / "test_program.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path],
        cwd=tmp_path,
        env=os.environ | {"MINIBROKER_BOOTSTRAP": broker.address},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr

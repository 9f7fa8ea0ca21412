"""A broker for all tests of the source and sink over the network."""

from collections.abc import Iterator

import pytest

from tests.support.processes import BrokerProcess, running_broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One that looks for what retention deletes all the time."""
    settings = ("--set", "log.retention.check.interval.ms=100")
    with running_broker(tmp_path_factory.mktemp("broker"), *settings) as broker:
        yield broker

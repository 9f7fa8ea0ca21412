"""A broker in a process of its own, for the tests that only need one that answers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import BrokerProcess, Shell, running_broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all of them; each takes topics of its own."""
    with running_broker(tmp_path_factory.mktemp("broker") / "data") as running:
        yield running


@pytest.fixture
def shell(broker: BrokerProcess) -> Shell:
    """A shell for the common broker."""
    return Shell(broker.address)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Where a broker of a test's own keeps its data."""
    return tmp_path / "data"

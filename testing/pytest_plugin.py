"""The pytest plugin: a real broker, or a cluster of them, as a fixture.

    def test_orders(kafka_broker):
        topic = kafka_broker.topic()

pytest loads this in every session where minibroker is installed, so it imports nothing but pytest
and the standard library until a test asks for a fixture. docs/testing.md says how to use it.
"""

import sys
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from minibroker.testing.kit.cluster import KafkaCluster
    from minibroker.testing.kit.pool import ClusterPool

BROKER: Final = "kafka_broker"
CLUSTER: Final = "kafka_cluster"
AUDIT: Final = "--minibroker-audit"
PORTS: Final = "--minibroker-ports"
PORTS_INI: Final = "minibroker_ports"
AUDIT_NEEDS: Final = ("numpy", "pyarrow", "xxhash")
OPTIONS: Final = {
    BROKER: "properties={}, flush='never', store='', fresh=False",
    CLUSTER: "brokers=3, properties={}, flush='never', store='', fresh=False",
}
_used: Final = pytest.StashKey["list[KafkaCluster]"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the fixtures."""
    group = parser.getgroup("minibroker")
    group.addoption(
        AUDIT,
        action="store_true",
        help="After each test with brokers: check their files. Needs minibroker[audit].",
    )
    group.addoption(
        PORTS,
        metavar="FIRST-LAST",
        default="",
        help=f"Ports for brokers, such as 20000-20400; by default the ini option {PORTS_INI}.",
    )
    parser.addini(PORTS_INI, "Ports for brokers, such as 20000-20400 (minibroker).", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Say which markers there are."""
    for name, options in OPTIONS.items():
        config.addinivalue_line(
            "markers",
            f"{name}({options}): what the fixture of this name is made of; with fresh=True a"
            " cluster for this test alone (minibroker)",
        )


@pytest.fixture(scope="session")
def _minibroker_pool(pytestconfig: pytest.Config) -> Iterator["ClusterPool"]:
    """The clusters of this session."""
    from minibroker.testing.kit.pool import ClusterPool
    from minibroker.testing.kit.run_directory import ports_of

    given = pytestconfig.getoption(PORTS)
    try:
        ports = ports_of(given or pytestconfig.getini(PORTS_INI))
    except ValueError as error:
        raise pytest.UsageError(f"{PORTS if given else PORTS_INI}: {error}") from None
    checks_logs = bool(pytestconfig.getoption(AUDIT))
    if checks_logs and (missing := [name for name in AUDIT_NEEDS if find_spec(name) is None]):
        raise pytest.UsageError(
            f"{AUDIT} needs {', '.join(missing)}: pip install 'minibroker[audit]'"
        )
    with ClusterPool(checks_logs=checks_logs, ports=ports) as pool:
        yield pool


@pytest.fixture
def kafka_broker(
    request: pytest.FixtureRequest, _minibroker_pool: "ClusterPool"
) -> Iterator["KafkaCluster"]:
    """A cluster of one real broker, which the tests of a session share; topics are each test's
    own. The marker `kafka_broker` changes it."""
    yield from _handed_out(request, _minibroker_pool, BROKER)


@pytest.fixture
def kafka_cluster(
    request: pytest.FixtureRequest, _minibroker_pool: "ClusterPool"
) -> Iterator["KafkaCluster"]:
    """A cluster of three real brokers, which the tests of a session share; topics are each test's
    own, and what a test has broken is mended after it. The marker `kafka_cluster` changes it."""
    yield from _handed_out(request, _minibroker_pool, CLUSTER)


def _handed_out(
    request: pytest.FixtureRequest, pool: "ClusterPool", name: str
) -> Iterator["KafkaCluster"]:
    if sys.platform == "win32":
        raise pytest.UsageError(f"{name}: brokers need Linux or macOS; on Windows use WSL")
    from minibroker.testing.kit.settings import ClusterSettings

    options: dict[str, Any] = {}
    for marker in reversed([*request.node.iter_markers(name)]):  # the test's own comes last
        if marker.args:
            raise pytest.UsageError(f"the marker {name} takes keywords only: {OPTIONS[name]}")
        options.update(marker.kwargs)
    is_fresh = options.pop("fresh", False)
    try:
        if name == BROKER:
            settings = ClusterSettings.of(**options, brokers=1)
        else:
            settings = ClusterSettings.of(**options)
    except (TypeError, ValueError) as error:
        raise pytest.UsageError(f"the marker {name}: {error}; it takes {OPTIONS[name]}") from None
    with pool.lend(request.node.name, settings, is_fresh=is_fresh) as cluster:
        request.node.stash.setdefault(_used, []).append(cluster)
        yield cluster


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Show what happened to the clusters of a test that failed."""
    report: pytest.TestReport = (yield).get_result()
    if report.failed and (used := item.stash.get(_used, [])):
        from minibroker.testing.kit.failure_report import failure_report

        for cluster in used:
            report.sections.append(("minibroker", failure_report(cluster)))

"""Health and metrics of a broker that does real work, and the page that describes them."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.processes import BrokerProcess, run_cli, run_here, running_broker
from tests.unit.observe.shown import parsed

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"\| `(\w+)` \| (\w+) \| ([^|]*) \| ([^|]*) \|")
SHOWN_AT = re.compile(r"Health and metrics: (http://\S+)/ready")
RECORDS = 100
GROUP = "readers"


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that took records, and gave a group half of them."""
    data_dir = tmp_path_factory.mktemp("broker") / "data"
    with running_broker(data_dir, "--set", "http.listener=127.0.0.1:0") as broker:
        server = ("--bootstrap-server", broker.address)
        lines = "".join(f"line {number}\n" for number in range(RECORDS))
        done = run_here("produce", "words", *server, stdin=lines)
        assert done.returncode == 0, done.stderr
        options = ("--from-beginning", "--max-messages", str(RECORDS // 2))
        done = run_here("consume", "words", "--group", GROUP, *options, *server)
        assert done.returncode == 0, done.stderr
        yield broker


def url_of(broker: BrokerProcess) -> str:
    """Where a broker says that its pages are."""
    found = SHOWN_AT.search(broker.output)
    assert found, broker.output
    return found[1]


def page_of(broker: BrokerProcess, path: str) -> str:
    """One of its pages."""
    answer = httpx.get(url_of(broker) + path, trust_env=False)
    assert answer.status_code == 200, answer.text
    return answer.text


def test_a_working_broker_is_ready(busy: BrokerProcess) -> None:
    """It lives, and is ready under both names of that page."""
    for path in ("/live", "/ready", "/v1/status/ready"):
        page_of(busy, path)


def test_metrics_tell_what_was_done(busy: BrokerProcess) -> None:
    """Records and offsets, of the topic, of the group, and of the broker as a whole."""
    _, samples = parsed(page_of(busy, "/metrics"))
    assert samples["kafka_server_brokertopicmetrics_messagesin_total"][("words",)] == RECORDS
    assert samples["kafka_topic_partition_current_offset"][("0", "words")] == RECORDS
    place = (GROUP, "0", "words")
    assert samples["kafka_consumergroup_current_offset"][place] == RECORDS // 2
    assert samples["kafka_consumergroup_lag"][place] == RECORDS // 2
    assert samples["kafka_consumergroup_members"] == {(GROUP,): 0}
    served = samples["kafka_network_requestmetrics_requests_total"]
    assert served[("Produce",)] >= 1
    assert served[("FetchConsumer",)] >= 1
    assert samples["kafka_controller_kafkacontroller_activecontrollercount"][()] == 1
    assert samples["minibroker_ready"][()] == 1
    assert samples["minibroker_durability_policy_info"][("replicated", "interval", "words")] == 1
    _, public = parsed(page_of(busy, "/public_metrics"))
    received = public["kafka_server_brokertopicmetrics_messagesin_total"][()]
    assert received == sum(samples["kafka_server_brokertopicmetrics_messagesin_total"].values())


def test_the_page_describes_what_is_shown(busy: BrokerProcess) -> None:
    """docs/metrics.md has a row for each metric that a broker shows and for no other, with its
    type, its labels, and whether it is on the public page."""
    families, _ = parsed(page_of(busy, "/metrics"))
    public, _ = parsed(page_of(busy, "/public_metrics"))
    names_of_public = {family.name for family in public}
    shown = {}
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        shown[name] = (family.type, labels, family.name in names_of_public)
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    described = {name: (kind, labels, public) for name, kind, labels, public in rows}
    assert described.keys() == shown.keys()
    for name, (kind, labels, is_public) in shown.items():
        row_kind, row_labels, row_public = described[name]
        assert (row_kind, row_public.strip() != "no") == (kind, is_public), name
        # One without samples now does not say what its labels are.
        assert labels in ({*re.findall(r"\w+", row_labels)}, set()), name


def test_a_taken_address_is_told(busy: BrokerProcess, tmp_path: Path) -> None:
    """A broker whose pages cannot be served does not start, and says which setting to change."""
    address = url_of(busy).removeprefix("http://")
    options = ("--listen", "127.0.0.1:0", "--set", f"http.listener={address}")
    done = run_cli("start", "--data-dir", str(tmp_path), *options)
    assert done.returncode == 1
    assert f"http.listener={address}" in done.stderr
    assert "Traceback" not in done.stderr


def test_open_connections_do_not_hold_up_the_stop(data_dir: Path) -> None:
    """A broker that is told to stop ends in order, though clients hold connections to its pages."""
    with running_broker(data_dir, "--set", "http.listener=127.0.0.1:0") as broker:
        host, port = url_of(broker).removeprefix("http://").split(":")
        with (
            socket.create_connection((host, int(port))) as idle,
            socket.create_connection((host, int(port))) as half,
        ):
            idle.sendall(b"GET /live HTTP/1.1\r\nHost: b\r\n\r\n")
            assert idle.recv(1)
            half.sendall(b"GET /metrics HTT")
            assert broker.stop() == 0
    assert "Traceback" not in broker.output

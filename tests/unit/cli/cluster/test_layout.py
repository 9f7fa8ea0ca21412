"""What a cluster's directory says, and which directories are none."""

import threading
from pathlib import Path

import pytest

from minibroker.broker.config import ConfigError, load
from minibroker.cli.cluster.layout import Layout, check_store, exclusive, layout_for
from minibroker.cli.terminal import Failure


def made(root: Path, count: int | None = None, port: int | None = None, **given: str) -> Layout:
    """As `cluster up` does it, with `given` settings (underscores for dots)."""
    settings = {name.replace("_", "."): value for name, value in given.items()}
    layout = layout_for(root, count, port, settings)
    layout.root.mkdir(exist_ok=True)
    layout.save()
    return layout


@pytest.mark.parametrize(
    ("count", "factor", "min_isr"), [(1, 1, 1), (2, 2, 1), (3, 3, 2), (5, 3, 2)]
)
def test_settings_follow_from_the_number_of_brokers(
    tmp_path: Path, count: int, factor: int, min_isr: int
) -> None:
    """Each broker has a number, a port and a directory of its own, the store of all, and copies as
    many as the cluster can hold."""
    layout = made(tmp_path, count, 7000)
    for node_id in layout.node_ids:
        config = load(flags=layout.broker_settings(node_id)).config
        assert config.node_id == node_id
        (listener,) = config.served_listeners
        assert str(listener.endpoint) == layout.address(node_id) == f"127.0.0.1:{6999 + node_id}"
        assert config.metadata_store == f"sqlite:{tmp_path / 'metadata.db'}"
        assert (config.default_replication_factor, config.min_insync_replicas) == (factor, min_isr)
        assert config.offsets_topic_replication_factor == factor
        assert (config.replica_lag_time_max_ms, config.broker_session_timeout_ms) == (10_000, 1_000)
    assert layout.bootstrap.split(",") == [layout.address(number) for number in layout.node_ids]


def test_the_environment_moves_no_broker(tmp_path: Path) -> None:
    """Brokers inherit the environment of `cluster up`; addresses in it would be those of all."""
    environ = {
        "KAFKA_LISTENERS": "PLAINTEXT://:1",
        "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://elsewhere:1",
    }
    settings = made(tmp_path, 2, 7000).broker_settings(2)
    config = load(environ=environ, flags=settings).config
    (advertised,) = config.advertised(config.served_listeners, "machine")
    assert advertised.endpoint == config.served_listeners[0].endpoint == ("127.0.0.1", 7001)


def test_what_was_told_once_holds(tmp_path: Path) -> None:
    """A later start without options is the same cluster; a new setting is added, the last wins."""
    first = made(tmp_path, 2, 7000, flush="always", log_segment_bytes="4096")
    assert Layout.load(tmp_path) == first == made(tmp_path)
    later = made(tmp_path, 2, 7000, flush="never", num_partitions="4")
    assert Layout.load(tmp_path) == later
    assert later.settings == {"flush": "never", "log.segment.bytes": "4096", "num.partitions": "4"}
    assert later.broker_settings(1)["flush"] == "never"


def test_given_settings_win_over_those_of_a_cluster(tmp_path: Path) -> None:
    """Who asks for another session or minimum of in-sync replicas gets it."""
    settings = made(tmp_path, min_insync_replicas="1").broker_settings(2)
    assert settings["min.insync.replicas"] == "1"
    assert settings["default.replication.factor"] == "3"


@pytest.mark.parametrize(("count", "port"), [(3, None), (None, 7001), (3, 7000)])
def test_another_number_or_port_is_refused(
    tmp_path: Path, count: int | None, port: int | None
) -> None:
    """What contradicts the first start is a usage error that says what was told then."""
    made(tmp_path, 2, 7000)
    with pytest.raises(Failure, match=r"has 2 brokers|begins at port 7000") as refused:
        layout_for(tmp_path, count, port, {})
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("count", "port", "settings", "told"),
    [
        (0, 7000, {}, "at least one broker"),
        (-1, 7000, {}, "at least one broker"),
        (1, 0, {}, "do not fit"),
        (2, 65_535, {}, "do not fit"),
        (1, 7000, {"node.id": "4"}, "node.id cannot be set for all"),
        (1, 7000, {"metadata.store": "memory:"}, "metadata.store cannot be set for all"),
        (1, 7000, {"flush": "sometimes"}, "never, interval, always"),
        (1, 7000, {"log.segment.byte": "1"}, "log.segment.bytes"),
    ],
)
def test_what_no_cluster_can_be_is_refused(
    tmp_path: Path, count: int, port: int, settings: dict[str, str], told: str
) -> None:
    """Numbers that do not fit and settings that no broker takes: refused, and nothing written."""
    with pytest.raises((Failure, ConfigError), match=told):
        layout_for(tmp_path / "new", count, port, settings)
    assert not (tmp_path / "new").exists()


def test_a_single_broker_s_directory_is_no_cluster_s(tmp_path: Path) -> None:
    """The data directory of a broker is refused by `cluster up`."""
    (tmp_path / "meta.properties").write_text("version=1\n")
    with pytest.raises(Failure, match="single broker"):
        layout_for(tmp_path, None, None, {})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "does not say cluster.brokers"),
        ("cluster.brokers=3\n", "does not say cluster.brokers"),
        ("cluster.brokers=x\ncluster.base.port=1\n", "does not say cluster.brokers"),
        ("nonsense", "not name=value"),
        ("cluster.brokers=3\ncluster.base.port=7000\nflsh=never\n", "flush"),
        ("cluster.brokers=3\ncluster.base.port=7000\nflush=ever\n", "never, interval, always"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, text: str, told: str) -> None:
    """A cluster.properties that was edited into nonsense is an error with its name and why."""
    (tmp_path / "cluster.properties").write_text(text)
    with pytest.raises(Failure, match=rf"cannot use .*cluster\.properties: .*{told}"):
        Layout.load(tmp_path)


def test_one_directory_has_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the directory is written, its brokers are the same ones."""
    layout = made(tmp_path / "cluster")
    (tmp_path / "link").symlink_to("cluster")
    monkeypatch.chdir(tmp_path)
    for name in ("cluster", "./link/../cluster", "link"):
        assert Layout.load(Path(name)) == layout


@pytest.mark.parametrize("store", [None, b""])
def test_a_lost_store_is_not_made_anew(tmp_path: Path, store: bytes | None) -> None:
    """Where one broker has run and the common store is gone, no broker may start."""
    layout = made(tmp_path)
    check_store(layout)
    layout.data_dir(2).mkdir()
    (layout.data_dir(2) / "meta.properties").write_text("version=1\n")
    if store is not None:
        (tmp_path / "metadata.db").write_bytes(store)
    with pytest.raises(Failure, match=r"metadata\.db is not there"):
        check_store(layout)
    (tmp_path / "metadata.db").write_bytes(b"something")
    check_store(layout)


def test_one_starts_brokers_at_a_time(tmp_path: Path) -> None:
    """Who is told the same at the same time waits, also if it has written the settings anew; who
    may not wait is told why."""
    layout = made(tmp_path)
    has_entered = threading.Event()

    def enter() -> None:
        layout.save()
        with exclusive(layout):
            has_entered.set()

    other = threading.Thread(target=enter)
    with exclusive(layout):
        with pytest.raises(Failure, match="another command starts or rolls the brokers in"):
            exclusive(layout, may_wait=False).__enter__()
        other.start()
        assert not has_entered.wait(0.2)
    other.join()
    assert has_entered.is_set()


def test_health_and_metrics_get_ports_of_their_own(tmp_path: Path) -> None:
    """Broker N serves them N - 1 above the base; that is remembered, and may be changed later.
    Without a base there are none, whatever the environment says."""
    layout = layout_for(tmp_path, 2, 7000, {}, 9644)
    layout.save()
    for known in (Layout.load(tmp_path), layout_for(tmp_path, None, None, {})):
        config = load(flags=known.broker_settings(2)).config
        assert str(config.http_listener) == "127.0.0.1:9645"
    assert layout_for(tmp_path, None, None, {}, 9700).http_base_port == 9700
    environ = {"KAFKA_HTTP_LISTENER": "127.0.0.1:80"}
    flags = made(tmp_path / "other", 2, 7000).broker_settings(1)
    assert load(environ=environ, flags=flags).config.http_listener is None


@pytest.mark.parametrize(
    ("http_base_port", "settings", "said"),
    [
        (7002, {}, "that brokers listen at"),
        (6998, {}, "that brokers listen at"),
        (65_534, {}, "see --http-base-port"),
        (0, {}, "see --http-base-port"),
        (None, {"http.listener": "127.0.0.1:9644"}, "--http-base-port"),
    ],
)
def test_ports_that_cannot_be(
    tmp_path: Path, http_base_port: int | None, settings: dict[str, str], said: str
) -> None:
    """Ports that brokers need, that do not exist, or one for all are usage errors."""
    with pytest.raises(Failure, match=said) as failure:
        layout_for(tmp_path, 3, 7000, settings, http_base_port)
    assert failure.value.exit_code == 2

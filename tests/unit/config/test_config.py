"""The configuration: the table, topics' overrides, and the page made of it."""

from dataclasses import fields
from pathlib import Path, PurePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.config import Config, ConfigError, TopicConfig, load
from minibroker.broker.config_page import reference_page
from minibroker.broker.config_property import Kind, parse_endpoints
from minibroker.broker.config_sources import parse_properties
from minibroker.broker.properties import PROPERTIES, TOPIC_PROPERTIES
from minibroker.broker.properties.kept import KEPT_PROPERTIES
from minibroker.protocol.constants import ConfigSource
from minibroker.protocol.types import NamedEndpoint

ROOT = Path(__file__).resolve().parents[3]
UNITS = (".ms", ".minutes", ".seconds", ".bytes", ".percentage", ".buffer.size", ".per.second")


def test_the_defaults_are_those_of_kafka_and_ours():
    """The defaults are Kafka's, or ours where docs/configuration.md gives another."""
    config = Config()
    assert config.listeners == (NamedEndpoint("PLAINTEXT", "127.0.0.1", 9092),)
    assert (config.flush, config.flush_ms) == ("interval", 1000)
    assert (config.num_partitions, config.default_replication_factor) == (1, 1)
    assert config.message_max_bytes == 1_048_588
    assert config.log_segment_bytes == 1_073_741_824
    assert config.log_retention_ms == config.log_roll_ms == 604_800_000
    assert config.log_retention_bytes == -1
    assert config.producer_id_expiration_ms == 86_400_000
    assert config.socket_request_max_bytes == 104_857_600
    assert config.fetch_max_bytes == 57_671_680
    assert config.auto_create_topics_enable is True


@pytest.mark.parametrize("row", PROPERTIES.values(), ids=lambda row: row.name)
def test_each_row_is_complete_and_its_default_allowed(row):
    """Every property has a sentence, and its default written as text is read back unchanged."""
    assert row.sentence.endswith(".")
    assert (row.unit != "") == row.name.endswith(UNITS)
    assert row.parse(row.format(row.default)) == row.default


def test_aliases_are_no_names_of_others():
    """No two properties answer to one name."""
    names = [*PROPERTIES, *(alias for row in PROPERTIES.values() for alias, _ in row.aliases)]
    assert len(names) == len(set(names))


def test_the_first_source_that_names_a_property_wins():
    """Flag before environment before file before default (docs/configuration.md)."""
    file = "num.partitions=2\nnode.id=2\nlog.dirs=/file\n# a comment\n\n! and one more\n"
    environ = {"KAFKA_NUM_PARTITIONS": "3", "KAFKA_NODE_ID": "3", "PATH": "/bin"}
    loaded = load(parse_properties(file), environ, {"num.partitions": "4"})
    config = loaded.config
    assert (config.num_partitions, config.node_id, config.log_dirs) == (4, 3, (PurePath("/file"),))
    assert loaded.sources["num.partitions"] == "flag"
    assert loaded.sources["node.id"] == "environment"
    assert loaded.sources["log.dirs"] == "file"
    assert loaded.sources["flush"] == "default"
    assert loaded.warnings == ()


def test_a_coarser_name_counts_in_its_unit():
    """log.retention.hours and .minutes are the same property as .ms; within a source .ms wins."""
    assert load(parse_properties("log.retention.hours=2")).config.log_retention_ms == 7_200_000
    assert load(parse_properties("log.retention.minutes=2")).config.log_retention_ms == 120_000
    assert load(parse_properties("log.retention.hours=-1")).config.log_retention_ms == -1
    both = "log.retention.hours=9\nlog.retention.minutes=8\n"
    assert load(parse_properties(both)).config.log_retention_ms == 480_000
    assert load(parse_properties(both + "log.retention.ms=7")).config.log_retention_ms == 7
    flags = {"log.retention.hours": "1"}
    assert load({"log.retention.ms": "7"}, flags=flags).config.log_retention_ms == 3_600_000


@pytest.mark.parametrize(
    ("given", "nearest"),
    [("log.segmnt.bytes", "log.segment.bytes"), ("flushms", "flush.ms"), ("lisener", "listeners")],
)
def test_an_unknown_name_names_the_nearest(given, nearest):
    """A name that does not exist is an error in a file or a flag, with the one meant."""
    with pytest.raises(ConfigError, match=f"{given!r}; the nearest is {nearest!r}"):
        load({given: "1"})
    with pytest.raises(ConfigError, match=f"{given!r}; the nearest is {nearest!r}"):
        load(flags={given: "1"})


def test_a_name_that_is_near_none_names_none():
    """Of a name that is like no property, none was meant, and none is named."""
    with pytest.raises(ConfigError, match=r"unknown property 'nonsense'$"):
        load({"nonsense": "1"})


LISTENERS = "NAME://HOST:PORT[,NAME://HOST:PORT...]"
DIRECTORIES = "directories, with commas between them, none twice or in another"
STORES = "sqlite:PATH, memory:, etcd:URL[,URL...]"


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("num.partitions", "0", "1 to 2^31-1"),
        ("num.partitions", "many", "1 to 2^31-1"),
        ("log.retention.ms", "-2", "-1 to 2^63-1 (ms)"),
        ("flush.ms", str(2**63), "1 to 2^63-1 (ms)"),
        ("flush", "sometimes", "never, interval, always"),
        ("auto.create.topics.enable", "yes", "true, false"),
        ("listeners", "", LISTENERS),
        ("listeners", "PLAINTEXT://x:65536", LISTENERS),
        ("listeners", "PLAINTEXT://x", LISTENERS),
        ("listeners", "PLAINTEXT://::1:9092", LISTENERS),
        ("listeners", "PLAINTEXT://a b:9092", LISTENERS),
        ("listeners", "://a:9092", LISTENERS),
        ("listeners", "A://a:9092,,B://b:1", LISTENERS),
        ("advertised.listeners", "http://a:9092/", LISTENERS),
        ("log.dirs", "", DIRECTORIES),
        ("log.dirs", "/a,", DIRECTORIES),
        ("log.dirs", "/a,/b,/a/", DIRECTORIES),
        ("log.dirs", "/a,/b,/b/../a/c", DIRECTORIES),
        ("broker.rack", "a\tb", "1 to 255 printable characters"),
        ("metadata.store", "zookeeper:x", STORES),
        ("metadata.store", "sqlite:", STORES),
        ("metadata.store", "etcd:", STORES),
        ("metadata.store", "etcd:a:2379", STORES),
        ("metadata.store", "etcd:http://a", STORES),
        ("metadata.store", "etcd:http://a:x", STORES),
        ("metadata.store", "etcd:http://a:0", STORES),
        ("metadata.store", "etcd:http://a:1?b", STORES),
        ("metadata.store", "etcd:ftp://a:1", STORES),
        ("metadata.store", "etcd:http://a:1,http://b:1/v3", STORES),
        ("log.retention.hours", "x", "-1 to 2^63-1 (ms)"),
    ],
)
def test_a_bad_value_is_refused_with_its_range(name, value, says):
    """The error names the property as it was given, the value, and what is allowed."""
    with pytest.raises(ConfigError) as caught:
        load(flags={name: value})
    assert str(caught.value) == f"{name} = {value!r} is not allowed; it takes {says}"


def test_a_rack_is_as_long_as_kafkas_wire_can_tell():
    """A longer one is refused; without text there is none."""
    assert load(flags={"broker.rack": "r" * 255}).config.broker_rack == "r" * 255
    assert load(flags={"broker.rack": " "}).config.broker_rack is None
    with pytest.raises(ConfigError, match="1 to 255 printable"):
        load(flags={"broker.rack": "r" * 256})


@given(st.sampled_from(sorted(PROPERTIES)), st.text(max_size=30))
def test_any_value_is_read_or_refused(name, text):
    """Any text for any property is a value within its range or a ConfigError."""
    row = PROPERTIES[name]
    try:
        value = row.parse(text)
    except ConfigError:
        return
    if row.kind is Kind.INT:
        assert row.low <= value <= row.high


def test_a_topic_overrides_the_broker():
    """A topic's own settings win, the broker's hold for the rest, and the log gets its limits."""
    config = load(parse_properties("log.segment.bytes=5000\nproducer.id.expiration.ms=77")).config
    assert config.for_topic().segment_bytes == 5000
    topic = config.for_topic({"segment.bytes": "9000", "flush": "always", "retention.ms": "-1"})
    assert (topic.segment_bytes, topic.flush, topic.retention_ms) == (9000, "always", -1)
    assert topic.retention_bytes == -1
    limits = topic.limits()
    assert (limits.segment_bytes, limits.retention_ms, limits.producer_expiration_ms) == (
        9000,
        -1,
        77,
    )
    assert limits.batch_bytes_max == config.message_max_bytes
    assert limits.index_bytes_max == config.log_index_size_max_bytes


def test_a_bad_override_is_refused():
    """An unknown topic property names the nearest, a bad value its range."""
    with pytest.raises(ConfigError, match=r"'retention.sm'; the nearest is 'retention.ms'"):
        Config().for_topic({"retention.sm": "1"})
    with pytest.raises(ConfigError, match=r"segment.bytes = '1' is not allowed; it takes 14 to"):
        Config().for_topic({"segment.bytes": "1"})
    for policy in ("compacted", "", "compact,,delete"):
        with pytest.raises(ConfigError, match=rf"cleanup\.policy = '{policy}' is not allowed"):
            Config().for_topic({"cleanup.policy": policy})
    for ratio in ("2", "-0.1", "nan", "half"):
        with pytest.raises(ConfigError, match=r"min.cleanable.dirty.ratio = .* it takes 0 to 1"):
            Config().for_topic({"min.cleanable.dirty.ratio": ratio})


def test_a_compacted_topic_keeps_everything_unless_it_deletes_too():
    """Retention by time and size holds with cleanup.policy=delete only, compaction with compact; a
    compacted log rolls early enough for max.compaction.lag.ms."""
    given = {"retention.ms": "1", "retention.bytes": "2", "max.compaction.lag.ms": "3"}
    found = {}
    for policy in ("delete", "compact", "compact, delete"):
        limits = Config().for_topic(given | {"cleanup.policy": policy}).limits()
        kept = (limits.retention_ms, limits.retention_bytes)
        found[policy] = (limits.is_compacted, kept, limits.segment_ms == 3)
    assert found == {
        "delete": (False, (1, 2), False),
        "compact": (True, (-1, -1), True),
        "compact, delete": (True, (1, 2), True),
    }


KEPT = {
    "compression.type": "gzip",
    "compression.gzip.level": "9",
    "flush.messages": "9223372036854775807",
    "preallocate": "true",
    "remote.storage.enable": "false",
    "local.retention.ms": "-2",
}


@pytest.mark.parametrize("name", KEPT)
def test_a_property_without_effect_is_kept(name):
    """It is described as it was set, and the log's settings are those of a topic without it."""
    config = Config()
    described = {row.name: row for row in config.describe_topic({name: KEPT[name]})}[name]
    assert (described.value, described.source) == (KEPT[name], ConfigSource.TOPIC)
    assert config.for_topic({name: KEPT[name]}).limits() == config.for_topic().limits()
    default = {row.name: row for row in config.describe_topic({})}[name]
    assert (default.is_default, default.source) == (True, ConfigSource.DEFAULT)


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("cleanup.policy", "compacted", "it takes compact, delete"),
        ("compression.type", "uncompressed", "a broker decompresses nothing"),
        ("remote.storage.enable", "true", "there is no tiered storage"),
        ("min.cleanable.dirty.ratio", "1.5", "it takes 0 to 1"),
        ("min.cleanable.dirty.ratio", "nan", "it takes 0 to 1"),
        ("flush.messages", "1", "only beside flush=always"),
        (
            "leader.replication.throttled.replicas",
            "1",
            "it takes '\\*', 'none', or PARTITION:BROKER",
        ),
        ("leader.replication.throttled.replicas", "0:1;1:2", "it takes"),
        ("leader.replication.throttled.replicas", "*,0:1", "it takes"),
        ("follower.replication.throttled.replicas", "0:-1", "it takes"),
        ("follower.replication.throttled.replicas", ",", "it takes"),
        ("message.format.version", "2.8", "Kafka 4.0 has removed it"),
    ],
)
def test_a_property_that_would_promise_something_is_refused(name, text, why):
    """The error says why."""
    with pytest.raises(ConfigError, match=f"^{name}.*{why}"):
        Config().for_topic({name: text})


def test_flushes_by_count_are_kept_where_each_record_is_flushed():
    """By the topic's own setting: the brokers' may differ."""
    always = load(flags={"flush": "always"}).config
    with pytest.raises(ConfigError, match=r"flush\.messages"):
        always.for_topic({"flush.messages": "1"})
    assert always.for_topic({"flush.messages": "1", "flush": "always"}).flush == "always"


def test_a_configuration_can_be_written_and_read():
    """Every value written as text, empty ones too, is a file that gives the same configuration."""
    given = "flush=always\nlog.retention.hours=1\nlisteners=A://[::1]:7,B://:8\nlog.dirs=/d\n"
    config = load(
        parse_properties(given + "listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT\n")
    ).config
    rows = PROPERTIES.values()
    written = "".join(f"{row.name}={row.format(config.value_of(row))}\n" for row in rows)
    assert "advertised.listeners=\n" in written
    assert "auto.create.topics.enable=true\n" in written
    assert load(parse_properties(written)).config == config


def test_a_topic_is_described():
    """DESCRIBE_CONFIGS lists every topic property, and which of them the topic sets itself."""
    rows = {row.name: row for row in Config().describe_topic({"flush": "never"})}
    assert rows.keys() == TOPIC_PROPERTIES.keys() | KEPT_PROPERTIES.keys()
    assert (rows["flush"].value, rows["flush"].is_default) == ("never", False)
    assert (rows["retention.ms"].value, rows["retention.ms"].is_default) == ("604800000", True)
    assert (rows["retention.ms"].type, rows["retention.ms"].unit) == ("int", "ms")


def test_a_broker_is_described():
    """Each property has its row; it says whether the broker was given another value."""
    config = load(flags={"log.retention.ms": "5"}).config
    rows = {row.name: row for row in config.describe_broker()}
    assert rows.keys() == PROPERTIES.keys()
    given, other = rows["log.retention.ms"], rows["log.segment.bytes"]
    assert (given.value, given.is_default, given.source) == ("5", False, ConfigSource.BROKER)
    assert (other.is_default, other.source) == (True, ConfigSource.DEFAULT)
    assert given.is_read_only
    topic = {row.name: row for row in config.describe_topic({"flush": "never"})}
    assert topic["flush"].source == ConfigSource.TOPIC
    assert topic["retention.ms"].source == ConfigSource.BROKER
    assert topic["segment.bytes"].source == ConfigSource.DEFAULT


def test_every_topic_setting_has_its_row():
    """TopicConfig has one field for each topic property, and the broker's producer expiry."""
    assert len(fields(TopicConfig)) == len(TOPIC_PROPERTIES) + 1


def test_the_page_is_the_table():
    """docs/configuration.md is what `reference_page()` makes of the table."""
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert page == reference_page(), "write reference_page() into docs/configuration.md"


@pytest.mark.parametrize(
    ("given", "session_ms", "heartbeat_ms"),
    [
        ({}, 1000, 250),
        ({"metadata.store": "sqlite:etcd"}, 1000, 250),
        ({"metadata.store": "etcd:http://a:1,https://b:2/"}, 6000, 1500),
        ({"metadata.store": "etcd:http://a:1", "broker.session.timeout.ms": "9000"}, 9000, 1500),
    ],
)
def test_sessions_are_longer_in_etcd(given, session_ms, heartbeat_ms):
    """What is not set has the store's default: a lease in etcd is renewed over a network."""
    config = load(flags=given).config
    assert config.broker_session_timeout_ms == session_ms
    assert config.broker_heartbeat_interval_ms == heartbeat_ms
    assert config.fence_timeout_ms == session_ms + 4 * heartbeat_ms


def test_the_time_until_a_broker_is_fenced_may_be_set():
    """In place of a session and four heartbeats."""
    given = {"broker.fence.timeout.ms": "1000"}
    assert load(flags=given).config.fence_timeout_ms == 1000


def test_endpoints_of_etcd():
    """Each is a scheme, a host and a port, whatever stands around them."""
    found = parse_endpoints("etcd:http://a:1, HTTPS://b.c:2/,https://[::1]:3")
    assert found == ("http://a:1", "https://b.c:2", "https://[::1]:3")


@pytest.mark.parametrize(
    ("text", "parsed"),
    [("*", "*"), ("none", ""), ("", ""), (" 0:1, 2:03 ,0:1", "0:1,2:3")],
)
def test_lists_of_throttled_replicas(text, parsed):
    """All, none or some."""
    settings = Config().for_topic({"leader.replication.throttled.replicas": text})
    assert settings.leader_replication_throttled_replicas == parsed


def test_what_can_be_altered_of_a_broker():
    """The two rates, which are described as altered; nothing else."""
    config, name = Config(), "leader.replication.throttled.rate"
    rows = {row.name: row for row in config.describe_broker({name: "7"}, with_synonyms=True)}
    assert (rows[name].value, rows[name].source) == ("7", ConfigSource.DYNAMIC_BROKER)
    assert not rows[name].is_read_only
    assert [one.value for one in rows[name].synonyms] == ["7", str(2**63 - 1)]
    assert rows["num.partitions"].is_read_only
    assert config.replication_limits({name: "7"}) == (7.0, float("inf"), float("inf"))

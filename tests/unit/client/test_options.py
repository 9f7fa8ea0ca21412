"""Options: Kafka's names and defaults, both spellings, and errors that help."""

import pytest

from minibroker.client.errors import ConfigError
from minibroker.client.options import (
    AdminOptions,
    ClientOptions,
    ConsumerOptions,
    ProducerOptions,
    read_options,
)
from minibroker.protocol.types import Endpoint

SERVERS = "127.0.0.1:9092"


def test_defaults_are_those_of_the_table() -> None:
    """Without options a producer and a consumer have Kafka's defaults, linger 5."""
    producer = read_options(ProducerOptions, SERVERS, {})
    assert producer.acks == -1
    assert producer.enable_idempotence
    assert producer.linger_ms == 5
    assert producer.batch_size == 16_384
    assert producer.buffer_memory == 33_554_432
    assert producer.max_in_flight_requests_per_connection == 5
    assert producer.retries == 2**31 - 1
    assert (producer.delivery_timeout_ms, producer.request_timeout_ms) == (120_000, 30_000)
    assert producer.call_timeout_ms == producer.max_block_ms == 60_000
    consumer = read_options(ConsumerOptions, SERVERS, {})
    assert consumer.auto_offset_reset == "latest"
    assert (consumer.fetch_min_bytes, consumer.fetch_max_wait_ms) == (1, 500)
    assert consumer.fetch_max_bytes == 52_428_800
    assert consumer.max_partition_fetch_bytes == 1_048_576
    assert consumer.max_poll_records == 500
    assert consumer.check_crcs
    assert consumer.metadata_max_age_ms == 300_000
    assert (consumer.group_id, consumer.group_instance_id) == ("", "")
    assert (consumer.enable_auto_commit, consumer.auto_commit_interval_ms) == (True, 5_000)
    assert (consumer.session_timeout_ms, consumer.heartbeat_interval_ms) == (45_000, 3_000)
    assert consumer.max_poll_interval_ms == 300_000
    assert consumer.partition_assignment_strategy == ("cooperative-sticky",)


def test_strategies_are_a_list_of_known_names() -> None:
    """As text with commas or as a sequence, in order of preference; none twice, none unknown."""
    name = "partition.assignment.strategy"
    for given in ("range, roundrobin", ["range", "roundrobin"]):
        options = read_options(ConsumerOptions, {"bootstrap.servers": SERVERS, name: given}, {})
        assert options.partition_assignment_strategy == ("range", "roundrobin")
    for given in ("", "sticky", "range,range", [], 7):
        with pytest.raises(ConfigError, match=r"range, roundrobin, cooperative-sticky, several"):
            read_options(ConsumerOptions, {"bootstrap.servers": SERVERS, name: given}, {})


def test_dotted_text_and_keywords_mean_the_same() -> None:
    """A mapping of dotted names with text, as in a file, gives what keywords give."""
    dotted = {
        "bootstrap.servers": "a:1, [::1]:2",
        "acks": "all",
        "linger.ms": "7",
        "enable.idempotence": "false",
        "compression.type": "lz4",
    }
    keywords = {
        "bootstrap_servers": ["a:1", "[::1]:2"],
        "acks": -1,
        "linger_ms": 7,
        "enable_idempotence": False,
        "compression_type": "lz4",
    }
    options = read_options(ProducerOptions, dotted, {})
    assert options == read_options(ProducerOptions, None, keywords)
    assert options.bootstrap_servers == (Endpoint("a", 1), Endpoint("::1", 2))


def test_a_keyword_wins_over_the_mapping() -> None:
    """A program may keep one mapping for all its clients and vary it by keywords."""
    options = read_options(ProducerOptions, {"bootstrap.servers": SERVERS, "acks": 1}, {"acks": 0})
    assert options.acks == 0


@pytest.mark.parametrize(
    ("kind", "name", "nearest"),
    [
        (ProducerOptions, "linger.msec", "linger.ms"),
        (ProducerOptions, "bacth_size", "batch_size"),
        (ConsumerOptions, "auto.offset.rest", "auto.offset.reset"),
        (ConsumerOptions, "bootstrap_server", "bootstrap_servers"),
        (AdminOptions, "request.timeout", "request.timeout.ms"),
    ],
)
def test_an_unknown_name_is_an_error_that_names_the_nearest(
    kind: type[ClientOptions], name: str, nearest: str
) -> None:
    """The error of a typing mistake says what was probably meant, in the spelling used."""
    with pytest.raises(ConfigError, match=f"no option '{name}'; the nearest is '{nearest}'"):
        read_options(kind, SERVERS, {name: 1})


def test_a_name_that_is_near_none_names_none() -> None:
    """Of a name that is like no option, none was meant, and none is named."""
    with pytest.raises(ConfigError, match=r"no option 'nonsense'$"):
        read_options(ProducerOptions, SERVERS, {"nonsense": 1})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_in_flight_requests_per_connection": 6}, "takes 1 to 5"),
        ({"linger_ms": -1}, r"takes 0 to 2\^31-1 \(milliseconds\)"),
        ({"linger_ms": 0.5}, "0.5 is not allowed"),
        ({"linger_ms": True}, "True is not allowed"),
        ({"acks": 2}, "takes all, -1, 0, 1"),
        ({"compression_type": "brotli"}, "none, gzip, snappy, lz4, zstd"),
        ({"enable_idempotence": "yes"}, "true, false"),
        ({"client_id": 5}, "takes text"),
        ({"bootstrap_servers": "host"}, "HOST:PORT"),
        ({"bootstrap_servers": "host:70000"}, "HOST:PORT"),
        ({"bootstrap_servers": []}, "HOST:PORT"),
    ],
)
def test_a_bad_value_is_an_error_that_says_the_range(given: dict[str, object], words: str) -> None:
    """What an option takes stands in the error, in words."""
    with pytest.raises(ConfigError, match=words):
        read_options(ProducerOptions, SERVERS, given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"enable_idempotence": True, "acks": 1}, "acks=all"),
        ({"enable_idempotence": True, "retries": 0}, "retries"),
        ({"delivery_timeout_ms": 30_004}, "at least linger.ms"),
    ],
)
def test_options_that_contradict_each_other_are_errors(
    given: dict[str, object], words: str
) -> None:
    """CPR-02: a setting that was asked for is refused, never dropped in silence."""
    with pytest.raises(ConfigError, match=words):
        read_options(ProducerOptions, SERVERS, given)


def test_idempotence_nobody_asked_for_gives_way() -> None:
    """CPR-02: acks=1 alone, or retries=0, is no contradiction: idempotence is then off."""
    assert not read_options(ProducerOptions, SERVERS, {"acks": 1}).enable_idempotence
    assert not read_options(ProducerOptions, SERVERS, {"retries": 0}).enable_idempotence


def test_a_long_poll_must_fit_into_the_request_timeout() -> None:
    """A broker that waits longer for data than the client waits for it would look dead."""
    with pytest.raises(ConfigError, match=r"fetch\.max\.wait\.ms"):
        read_options(ConsumerOptions, SERVERS, {"request_timeout_ms": 500})


def test_no_servers_is_an_error() -> None:
    """A client does not guess whom to ask."""
    with pytest.raises(ConfigError, match=r"bootstrap\.servers is missing"):
        read_options(AdminOptions, None, {})

"""Options: Kafka's names and defaults, both spellings, and errors that help."""

import dataclasses
from pathlib import Path

import pytest

from minibroker.client.errors import ConfigError
from minibroker.client.foreign_options import RENAMED, SENTENCES
from minibroker.client.options import (
    AdminOptions,
    ClientOptions,
    ConsumerOptions,
    ProducerOptions,
    read_options,
)
from minibroker.protocol.types import Endpoint
from tests.unit.client import option_tables

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
    for name in ("nonsense", "frobnicate.level", "max_records_per_partition"):
        with pytest.raises(ConfigError, match=rf"no option '{name}'$"):
            read_options(ProducerOptions, SERVERS, {name: 1})


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        (ProducerOptions, "security.protocol", "no authentication and no encryption yet"),
        (ConsumerOptions, "sasl_mechanism", "no authentication and no encryption yet"),
        (AdminOptions, "ssl.ca.location", "no authentication and no encryption yet"),
        (ProducerOptions, "api_version", "agree on versions by themselves"),
        (ConsumerOptions, "enable.auto.offset.store", r"call commit\(record\) after your work"),
        (ConsumerOptions, "auto.commit.enable", "it is called enable.auto.commit here"),
        (ProducerOptions, "queue.buffering.max.ms", "it is called linger.ms here"),
        (ProducerOptions, "metadata.broker.list", "it is called bootstrap.servers here"),
        (ConsumerOptions, "transactional.id", "it is one of a producer"),
        (ProducerOptions, "isolation.level", "it is one of a consumer"),
        (ConsumerOptions, "allow.auto.create.topics", "never creates a topic"),
        (ConsumerOptions, "value_serializer", "a keyword of a producer"),
        (ProducerOptions, "key.deserializer", "a keyword of a consumer"),
        (ProducerOptions, "value.serializer", "a keyword of a producer"),
        (ProducerOptions, "group_id", "it is one of a consumer"),
        (ConsumerOptions, "linger.ms", "it is one of a producer"),
        (AdminOptions, "acks", "it is one of a producer"),
        (ConsumerOptions, "loop", "minibroker.client.asyncio"),
    ],
)
def test_a_known_option_that_is_not_there_says_so(
    kind: type[ClientOptions], name: str, words: str
) -> None:
    """A program for another client is told in words, not sent looking for a typing mistake."""
    with pytest.raises(ConfigError, match=f"has no option '{name}'.*{words}"):
        read_options(kind, SERVERS, {name: 1})


def test_no_foreign_option_is_one_of_ours() -> None:
    """What is said to be missing is missing in all clients, and what is named instead is there."""
    ours = {each.name for kind in option_tables.KINDS.values() for each in dataclasses.fields(kind)}
    foreign = RENAMED.keys() | SENTENCES.keys()
    assert not ours & foreign
    assert {name.replace(".", "_") for name in RENAMED.values()} <= ours


@pytest.mark.parametrize(("path", "text"), list(option_tables.pages()))
def test_types_and_pages_are_those_of_the_table(path: Path, text: str) -> None:
    """What editors complete and what the documents list is what is checked."""
    assert path.read_text("utf-8") == text, "say `python -m tests.unit.client.option_tables`"


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
        ({"bootstrap_servers": "host:"}, "HOST:PORT"),
        ({"bootstrap_servers": "9092"}, "HOST:PORT"),
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
        ({"transactional_id": "t", "acks": 1}, "transactional.id needs enable.idempotence"),
        ({"transactional_id": "t", "enable_idempotence": False}, "transactional.id needs"),
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

"""Where values come from: properties and TOML files, the environment; and all that is wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.config import ConfigError, load
from minibroker.broker.config_sources import environment_name, parse_properties, parse_toml
from minibroker.broker.properties import PROPERTIES
from tests.unit.config.kafka_example import EXAMPLE

# -- the environment


def test_an_environment_without_meaning_is_one_warning():
    """A compose file written for another broker comes up; what it says in vain is named once."""
    environ = {
        "KAFKA_OPTS": "-X",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@x:1",
        "KAFKA_FLUSH": "always",
    }
    loaded = load(environ=environ)
    assert loaded.config.flush == "always"
    assert loaded.warnings == (
        "without meaning here, and left out: KAFKA_CONTROLLER_QUORUM_VOTERS, KAFKA_OPTS",
    )


@pytest.mark.parametrize(
    ("name", "variable"),
    [("log.dirs", "KAFKA_LOG_DIRS"), ("a_b.c-d", "KAFKA_A__B_C___D")],
)
def test_the_environment_spells_names_as_apache_kafkas_image(name, variable):
    """A dot is `_`, an underscore `__`, a dash `___` (docs/configuration.md)."""
    assert environment_name(name) == variable


@given(st.from_regex(r"[a-z](?:[._-]?[a-z])*", fullmatch=True))
def test_a_name_survives_the_environment(name):
    """What is spelled for the environment is read back; an unknown name shows that."""
    loaded = load(environ={environment_name(name): "1"} if name not in PROPERTIES else {})
    assert loaded.warnings == () or loaded.warnings[0].endswith(environment_name(name))


def test_an_empty_variable_is_not_there():
    """A compose file leaves a variable out by making it empty: what the file says holds then."""
    environ = {"KAFKA_LISTENERS": "", "KAFKA_NUM_PARTITIONS": " ", "KAFKA_NO_MEANING": ""}
    loaded = load({"num.partitions": "3"}, environ | {"CLUSTER_ID": ""})
    assert loaded.config == load({"num.partitions": "3"}).config
    assert loaded.sources["listeners"] == "default"
    assert loaded.warnings == ()


def test_a_bad_variable_is_named_as_it_is():
    """Who set a variable looks for that, not for the property."""
    with pytest.raises(ConfigError, match="KAFKA_NUM_PARTITIONS = 'x' is not allowed"):
        load(environ={"KAFKA_NUM_PARTITIONS": "x"})


def test_the_clusters_id_has_a_variable_of_its_own():
    """CLUSTER_ID is cluster.id, as in Kafka's container image; a flag is stronger."""
    environ = {"CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw"}
    loaded = load({"cluster.id": "file"}, environ)
    assert loaded.config.cluster_id == "4L6g3nShT-eMCtK--X86sw"
    assert loaded.sources["cluster.id"] == "environment"
    assert load({}, environ, {"cluster.id": "flag"}).config.cluster_id == "flag"
    with pytest.raises(ConfigError, match=r"cluster\.id = 'a b' is not allowed; it takes 1 to 64"):
        load(flags={"cluster.id": "a b"})


def test_an_example_for_kafka_comes_up():
    """The variables of Kafka's own example mean what they mean there, with one warning for those
    that concern what is not here."""
    loaded = load(environ=EXAMPLE)
    config = loaded.config
    assert list(map(str, config.served_listeners)) == [
        "PLAINTEXT://0.0.0.0:19092",
        "PLAINTEXT_HOST://0.0.0.0:9092",
    ]
    advertised = config.advertised(config.served_listeners, "machine")
    assert list(map(str, advertised)) == [
        "PLAINTEXT://kafka-1:19092",
        "PLAINTEXT_HOST://localhost:29092",
    ]
    assert (config.node_id, config.cluster_id) == (1, "4L6g3nShT-eMCtK--X86sw")
    assert str(config.data_dir) == "/var/lib/kraft-combined-logs"
    assert config.group_initial_rebalance_delay_ms == 0
    assert loaded.warnings == (
        "without meaning here, and left out: KAFKA_CONTROLLER_QUORUM_VOTERS, KAFKA_PROCESS_ROLES,"
        " KAFKA_TRANSACTION_STATE_LOG_MIN_ISR,"
        " the listener CONTROLLER (there is no quorum of controllers to listen for)",
    )


# -- files


def test_a_file_has_lines_of_properties():
    """Blank lines and comments are left out, whatever ends a line; of two equal names the later
    one holds."""
    text = "# a\n! b\r\n\r\nnode.id = 1\nnode.id=2\r\nlisteners=A://:1\n"
    assert parse_properties(text) == {"node.id": "2", "listeners": "A://:1"}


def test_lines_that_are_no_properties_are_named():
    """Lines without `=` are errors with their numbers, all of them."""
    with pytest.raises(ConfigError, match=r"line 2 .* 'nonsense' \(and 1 more\)") as raised:
        parse_properties("node.id=1\nnonsense\nmore")
    assert [problem[:6] for problem in raised.value.problems] == ["line 2", "line 3"]


@given(st.text())
def test_any_text_is_read_or_refused(text):
    """A configuration file of any content is properties or a ConfigError, nothing else."""
    for parse in (parse_properties, parse_toml):
        try:
            parse(text)
        except ConfigError:
            continue


def test_a_file_may_be_toml():
    """Tables within tables are names with dots, arrays have commas, and values are as in TOML."""
    text = """
        flush = "interval"
        "flush.ms" = 5
        listeners = ["A://:1", "B://:2"]
        auto.create.topics.enable = false
        [log]
        dirs = "/data"
        segment.bytes = 1_000
        [log.retention]
        hours = 48
    """
    assert parse_toml(text) == {
        "flush": "interval",
        "flush.ms": "5",
        "listeners": "A://:1,B://:2",
        "auto.create.topics.enable": "false",
        "log.dirs": "/data",
        "log.segment.bytes": "1000",
        "log.retention.hours": "48",
    }
    assert load(parse_toml(text)).config.log_retention_ms == 48 * 3_600_000
    assert parse_toml("") == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("node.id = \n", r"no good TOML: Invalid value \(at line 1, column 11\)$"),
        ("flush = 'always'\nflush.ms = 5\n", r'line 2.*; a name .* in quotes: "flush.ms" = 1000$'),
        ("flush.ms = 5\nflush = 'always'", r'in quotes: "flush.ms" = 1000$'),
        ("[flush]\nms = 5\n[flush]\nms = 6", r'in quotes: "flush.ms" = 1000$'),
        ("flush.ms = 5\n'flush.ms' = 6", "^flush.ms is given twice, in quotes and in a table"),
        ("node.id = 2026-01-01", "^node.id cannot be a date; it takes a text, a number or true"),
        ("log.dirs = [['a']]", "^log.dirs cannot be a list"),
        ("listeners = [{a = 1}]", "^listeners cannot be a list"),
    ],
)
def test_bad_toml_is_told(text, says):
    """What is no TOML is named with its place; a name that cannot be a value and a table, with
    what to write instead; a value that no property has, with its name."""
    with pytest.raises(ConfigError, match=says):
        parse_toml(text)


# -- all together


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"broker.heartbeat.interval.ms": "1000"},
            "broker.heartbeat.interval.ms = 1000 must be below broker.session.timeout.ms = 1000;"
            " else the broker would count as dead between two signs of life",
        ),
        (
            {"broker.fence.timeout.ms": "999"},
            "broker.session.timeout.ms = 1000 must be at most broker.fence.timeout.ms = 999; else"
            " leaders would refuse requests whenever a controller is replaced",
        ),
        ({"replica.lag.time.max.ms": "499"}, "replica.fetch.wait.max.ms = 500 must be at most"),
        ({"replica.socket.timeout.ms": "499"}, " must be at most replica.socket.timeout.ms = 499;"),
        ({"group.max.session.timeout.ms": "999"}, "group.min.session.timeout.ms = 1000 must be at"),
        ({"log.roll.ms": "9", "log.roll.jitter.ms": "10"}, "log.roll.jitter.ms = 10 must be at"),
    ],
)
def test_values_must_agree(given, says):
    """Two values that cannot both hold are an error that says what would happen."""
    with pytest.raises(ConfigError) as raised:
        load(given)
    assert says in str(raised.value)
    assert load({"broker.heartbeat.interval.ms": "999"}).config.broker_heartbeat_interval_ms == 999
    assert load({"replica.lag.time.max.ms": "500"}).config.replica_lag_time_max_ms == 500


def test_every_problem_is_told():
    """Unknown names, values out of their range, values at odds: all at once, and no more than
    there are; what follows from a value that is bad by itself is not told as well."""
    with pytest.raises(
        ConfigError, match=r"^unknown property 'nodeid'.* \(and 5 more\)$"
    ) as raised:
        load(
            {
                "nodeid": "1",
                "num.partitions": "0",
                "broker.heartbeat.interval.ms": "9000",
                "replica.lag.time.max.ms": "short",
                "listeners": "A://:1,B://:1",
            },
            {"KAFKA_FLUSH": "sometimes", "KAFKA_NO_MEANING": "1"},
        )
    names = [problem.split(" = ")[0].split(":")[0] for problem in raised.value.problems]
    assert names == [
        "unknown property 'nodeid'; the nearest is 'node.id'",
        "num.partitions",
        "KAFKA_FLUSH",
        "replica.lag.time.max.ms",
        "broker.heartbeat.interval.ms",
        "listeners",
    ]
    with pytest.raises(ConfigError) as raised:
        load({"listeners": "nonsense", "advertised.listeners": "A://a:1"})
    assert len(raised.value.problems) == 1


# -- what an error shows


SECRET = "hunter2"
STORES = [
    f"etcd:http://user:{SECRET}@127.0.0.1:2379",
    f"etcd:http://127.0.0.1:1,https://user:a@b/{SECRET},c d@127.0.0.1:2379",
    f"http://{SECRET}@127.0.0.1:2379",
    f"sqlite:http://user:{SECRET}@127.0.0.1/store",
]


@pytest.mark.parametrize("store", STORES)
def test_an_error_shows_no_password(store: str):
    """Wherever the URL stands; it says where the password belongs."""
    for source in (
        {"flags": {"metadata.store": store}},
        {"file": {"metadata.store": store}},
        {"environ": {"KAFKA_METADATA_STORE": store}},
    ):
        with pytest.raises(ConfigError) as caught:
            load(**source)
        [problem] = caught.value.problems
        assert SECRET not in problem
        assert problem.endswith("metadata.store.password.file")


@pytest.mark.parametrize("store", STORES)
def test_a_bad_line_shows_no_password(store: str):
    """Nor does a name that is one by mistake, or a property of another kind."""
    with pytest.raises(ConfigError) as caught:
        parse_properties(f"metadata.store {store}\n")
    assert SECRET not in str(caught.value)
    for wrong in ({f"metadata.store:{store}": "1"}, {"http.listener": store}, {"node.id": store}):
        with pytest.raises(ConfigError) as caught:
            load(wrong)
        assert SECRET not in "".join(caught.value.problems)


def test_problems_are_bounded():
    """Of a hundred thousand the first hundred are named, with a short part of each."""
    many = 100_000
    with pytest.raises(ConfigError) as caught:
        load({f"no.such.{number}": "1" for number in range(many)})
    assert len(caught.value.problems) == 101
    assert caught.value.problems[-1] == f"{many - 100} more unknown properties"
    with pytest.raises(ConfigError) as caught:
        parse_properties("x\n" * many)
    assert caught.value.problems[100:] == (f"{many - 100} more lines are not name=value",)
    with pytest.raises(ConfigError) as caught:
        load({"x" * many: "1", "node.id": "y" * many})
    assert max(map(len, caught.value.problems)) < 400

"""Conversations about the cluster, topics and settings."""

from collections.abc import Iterator
from typing import Any, Final

from minibroker.protocol.kafka import admin_apis, apis
from minibroker.protocol.kafka.schema import Version
from tests.interop.conversations.case import Case, Request, Script, requests, scripts
from tests.interop.conversations.records import NO_ID, UNKNOWN_ID, unknown
from tests.interop.conversations.talk import Fields, Talk

TOPIC: Final = 2
BROKER: Final = 4


def metadata(talk: Talk, *topics: Fields, **more: Any) -> Fields:
    """The fields of a Metadata that creates nothing."""
    return {"topics": [*topics], "allow_auto_topic_creation": False, **more}


METADATA: Final[dict[str, Request]] = {
    "a topic": lambda talk: metadata(talk, {"name": talk.topic(partitions=2).name}),
    "a topic twice": lambda talk: metadata(talk, *[{"name": talk.topic().name}] * 2),
    "an invalid name": lambda talk: metadata(talk, {"name": "a b"}),
    "an empty name": lambda talk: metadata(talk, {"name": ""}),
    "the offsets topic": lambda talk: metadata(talk, {"name": "__consumer_offsets"}),
    "operations": lambda talk: metadata(
        talk,
        {"name": talk.topic().name},
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    ),
}
METADATA_NAMES: Final[dict[str, Request]] = {
    "no topics": lambda talk: metadata(talk),
}
METADATA_CREATING: Final[dict[str, Request]] = {
    "an unknown topic": lambda talk: metadata(talk, {"name": unknown(talk).name}),
}
METADATA_IDS: Final[dict[str, Request]] = {
    "an id": lambda talk: metadata(talk, {"topic_id": talk.topic().id, "name": None}),
    "an unknown id": lambda talk: metadata(talk, {"topic_id": UNKNOWN_ID, "name": None}),
    "an id and a name": lambda talk: metadata(
        talk, {"topic_id": talk.topic().id, "name": f"{talk.name}-t"}
    ),
    "neither id nor name": lambda talk: metadata(talk, {"topic_id": NO_ID, "name": None}),
    "ids and names": lambda talk: metadata(
        talk, {"topic_id": talk.topic().id, "name": None}, {"name": talk.topic("u").name}
    ),
}
API_VERSIONS: Final[dict[str, Request]] = {
    "a client": lambda talk: {
        "client_software_name": "tests",
        "client_software_version": "1.0",
    },
    "a client without a name": lambda talk: {
        "client_software_name": "",
        "client_software_version": "1.0",
    },
    "a client without a version": lambda talk: {
        "client_software_name": "tests",
        "client_software_version": "",
    },
    "a client with a blank in its name": lambda talk: {
        "client_software_name": "a b",
        "client_software_version": "1.0",
    },
}


def creating(talk: Talk, *, timeout_ms: int = 5_000, validate: bool = False, **more: Any) -> Fields:
    """The fields of a CreateTopics with one topic."""
    topic = {"name": f"{talk.name}-new", "num_partitions": 1, "replication_factor": 1, **more}
    return {"topics": [topic], "timeout_ms": timeout_ms, "validate_only": validate}


def created(**more: Any) -> Request:
    """A CreateTopics."""
    return lambda talk: creating(talk, **more)


def assigned(*replicas: tuple[int, list[int]], **more: Any) -> Request:
    """A CreateTopics that names the replicas of partitions."""
    assignments = [{"partition_index": index, "broker_ids": ids} for index, ids in replicas]
    own = {"num_partitions": -1, "replication_factor": -1, "assignments": assignments}
    return created(**{**own, **more})


def configured(name: str, value: str | None) -> Request:
    """A CreateTopics with a setting."""
    return created(configs=[{"name": name, "value": value}])


def created_twice(talk: Talk) -> Fields:
    """Two topics of a name, and another one."""
    asked = creating(talk)
    (topic,) = asked["topics"]
    return {**asked, "topics": [topic, topic, {**topic, "name": f"{talk.name}-other"}]}


CREATE_TOPICS: Final[dict[str, Request]] = {
    "a topic": created(num_partitions=2),
    "a topic that exists": lambda talk: creating(talk, name=talk.topic().name),
    "validation": created(validate=True),
    "validation of a topic that exists": lambda talk: creating(
        talk, name=talk.topic().name, validate=True
    ),
    "a topic twice": created_twice,
    "no topics": lambda talk: {"topics": [], "timeout_ms": 5_000},
    "an empty name": created(name=""),
    "an invalid name": created(name="a b"),
    "the name .": created(name="."),
    "a name too long": created(name="x" * 250),
    "a name that differs in a dot": lambda talk: creating(
        talk, name=talk.topic("a_b").name.replace("a_b", "a.b")
    ),
    "the offsets topic": created(name="__consumer_offsets"),
    "partitions 0": created(num_partitions=0),
    "partitions -2": created(num_partitions=-2),
    "replicas 0": created(replication_factor=0),
    "replicas -2": created(replication_factor=-2),
    "more replicas than brokers": created(replication_factor=2),
    "a setting": configured("retention.ms", "100000"),
    "an unknown setting": configured("odd", "1"),
    "a wrong value": configured("retention.ms", "odd"),
    "a value too low": configured("retention.ms", "-7"),
    "a null value": configured("retention.ms", None),
    "an empty value": configured("retention.ms", ""),
    "an assignment": assigned((0, [1]), (1, [1])),
    "an assignment to an unknown broker": assigned((0, [9])),
    "an assignment with a gap": assigned((0, [1]), (2, [1])),
    "an assignment without brokers": assigned((0, [])),
    "an assignment of a broker twice": assigned((0, [1, 1])),
    "an assignment of a partition twice": assigned((0, [1]), (0, [1])),
    "an assignment and a number": assigned((0, [1]), num_partitions=1),
    "timeout -1": created(timeout_ms=-1),
}
CREATE_TOPICS_DEFAULTS: Final[dict[str, Request]] = {
    "default partitions": created(num_partitions=-1),
    "default replicas": created(replication_factor=-1),
}


def removing(*names: str) -> Fields:
    """The fields of a DeleteTopics, for all versions."""
    return {
        "topic_names": [*names],
        "topics": [{"name": name, "topic_id": NO_ID} for name in names],
        "timeout_ms": 5_000,
    }


def removing_ids(*ids: bytes, name: str | None = None) -> Fields:
    """The fields of a DeleteTopics by ids."""
    return {"topics": [{"name": name, "topic_id": one} for one in ids], "timeout_ms": 5_000}


DELETE_TOPICS: Final[dict[str, Request]] = {
    "a topic": lambda talk: removing(talk.topic().name),
    "an unknown topic": lambda talk: removing(unknown(talk).name),
    "known and unknown topics": lambda talk: removing(talk.topic().name, unknown(talk).name),
    "a topic twice": lambda talk: removing(*[talk.topic().name] * 2),
    "an invalid name": lambda talk: removing("a b"),
    "an empty name": lambda talk: removing(""),
    "no topics": lambda talk: removing(),
    "timeout -1": lambda talk: {**removing(talk.topic().name), "timeout_ms": -1},
}
DELETE_TOPICS_IDS: Final[dict[str, Request]] = {
    "a topic by its id": lambda talk: removing_ids(talk.topic().id),
    "an unknown id": lambda talk: removing_ids(UNKNOWN_ID),
    "an id twice": lambda talk: removing_ids(*[talk.topic().id] * 2),
    "an id and a name": lambda talk: removing_ids(talk.topic().id, name=f"{talk.name}-t"),
    "neither id nor name": lambda talk: removing_ids(NO_ID),
    "a topic by its name and by its id": lambda talk: {
        "topics": [
            {"name": None, "topic_id": talk.topic().id},
            {"name": f"{talk.name}-t", "topic_id": NO_ID},
        ],
        "timeout_ms": 5_000,
    },
}


def growing(talk: Talk, count: int, name: str = "", **more: Any) -> Fields:
    """The fields of a CreatePartitions of a topic with two partitions."""
    validate = more.pop("validate_only", False)
    topic = {"name": name or talk.topic(partitions=2).name, "count": count, "assignments": None}
    return {"topics": [{**topic, **more}], "timeout_ms": 5_000, "validate_only": validate}


CREATE_PARTITIONS: Final[dict[str, Request]] = {
    "more": lambda talk: growing(talk, 3),
    "as many": lambda talk: growing(talk, 2),
    "fewer": lambda talk: growing(talk, 1),
    "none": lambda talk: growing(talk, 0),
    "-1": lambda talk: growing(talk, -1),
    "validation": lambda talk: growing(talk, 3, validate_only=True),
    "an unknown topic": lambda talk: growing(talk, 3, unknown(talk).name),
    "an empty name": lambda talk: {**growing(talk, 3), "topics": [{"name": "", "count": 3}]},
    "no topics": lambda talk: {"topics": [], "timeout_ms": 5_000},
    "an assignment": lambda talk: growing(talk, 3, assignments=[{"broker_ids": [1]}]),
    "an assignment to an unknown broker": lambda talk: growing(
        talk, 3, assignments=[{"broker_ids": [9]}]
    ),
    "an assignment too short": lambda talk: growing(talk, 4, assignments=[{"broker_ids": [1]}]),
    "an assignment without brokers": lambda talk: growing(
        talk, 3, assignments=[{"broker_ids": []}]
    ),
    "a topic twice": lambda talk: {
        **(one := growing(talk, 3)),
        "topics": [*one["topics"], *one["topics"]],
    },
}


def describing(kind: int, name: str, *keys: str, **more: Any) -> Fields:
    """The fields of a DescribeConfigs."""
    resource = {
        "resource_type": kind,
        "resource_name": name,
        "configuration_keys": [*keys] or None,
    }
    return {"resources": [resource], **more}


DESCRIBE_CONFIGS: Final[dict[str, Request]] = {
    "a topic": lambda talk: describing(TOPIC, talk.topic(retention_ms="100000").name),
    "a setting of a topic": lambda talk: describing(
        TOPIC, talk.topic(retention_ms="100000").name, "retention.ms"
    ),
    "an unknown setting": lambda talk: describing(TOPIC, talk.topic().name, "odd"),
    "no settings": lambda talk: {
        "resources": [
            {
                "resource_type": TOPIC,
                "resource_name": talk.topic().name,
                "configuration_keys": [],
            }
        ]
    },
    "synonyms": lambda talk: describing(
        TOPIC,
        talk.topic(retention_ms="100000").name,
        "retention.ms",
        "cleanup.policy",
        include_synonyms=True,
    ),
    "documentation": lambda talk: describing(
        TOPIC, talk.topic().name, "retention.ms", include_documentation=True
    ),
    "an unknown topic": lambda talk: describing(TOPIC, unknown(talk).name),
    "an invalid topic": lambda talk: describing(TOPIC, "a b"),
    "an empty topic name": lambda talk: describing(TOPIC, ""),
    "a broker": lambda talk: describing(BROKER, "1", "num.partitions", "log.retention.hours"),
    "synonyms of a broker": lambda talk: describing(
        BROKER, "1", "num.partitions", include_synonyms=True
    ),
    "all brokers": lambda talk: describing(BROKER, "", "num.partitions"),
    "another broker": lambda talk: describing(BROKER, "9"),
    "a broker without a number": lambda talk: describing(BROKER, "odd"),
    "an unknown type": lambda talk: describing(99, "x"),
    "no resources": lambda talk: {"resources": []},
    "a topic twice": lambda talk: {
        "resources": describing(TOPIC, talk.topic().name, "retention.ms")["resources"] * 2
    },
}


def altering(kind: int, name: str, *configs: tuple[str, str | None], **more: Any) -> Fields:
    """The fields of an AlterConfigs."""
    entries = [{"name": key, "value": value} for key, value in configs]
    resource = {"resource_type": kind, "resource_name": name, "configs": entries}
    return {"resources": [resource], **more}


ALTER_CONFIGS: Final[dict[str, Request]] = {
    "a setting": lambda talk: altering(TOPIC, talk.topic().name, ("retention.ms", "100000")),
    "no settings": lambda talk: altering(TOPIC, talk.topic().name),
    "validation": lambda talk: altering(
        TOPIC, talk.topic().name, ("retention.ms", "100000"), validate_only=True
    ),
    "validation of a wrong value": lambda talk: altering(
        TOPIC, talk.topic().name, ("retention.ms", "odd"), validate_only=True
    ),
    "an unknown setting": lambda talk: altering(TOPIC, talk.topic().name, ("odd", "1")),
    "a wrong value": lambda talk: altering(TOPIC, talk.topic().name, ("retention.ms", "odd")),
    "a null value": lambda talk: altering(TOPIC, talk.topic().name, ("retention.ms", None)),
    "a setting twice": lambda talk: altering(
        TOPIC, talk.topic().name, ("retention.ms", "100000"), ("retention.ms", "200000")
    ),
    "an unknown topic": lambda talk: altering(TOPIC, unknown(talk).name, ("retention.ms", "1")),
    "an invalid topic": lambda talk: altering(TOPIC, "a b", ("retention.ms", "1")),
    "an empty topic name": lambda talk: altering(TOPIC, "", ("retention.ms", "1")),
    "an unknown type": lambda talk: altering(99, "x", ("retention.ms", "1")),
    "a setting of another broker": lambda talk: altering(BROKER, "9", ("log.cleaner.threads", "2")),
    "no resources": lambda talk: {"resources": []},
    "a topic twice": lambda talk: {
        "resources": altering(TOPIC, talk.topic().name, ("retention.ms", "100000"))["resources"] * 2
    },
}


def changing(
    name: str, *configs: tuple[str, int, str | None], kind: int = TOPIC, **more: Any
) -> Fields:
    """The fields of an IncrementalAlterConfigs."""
    entries = [
        {"name": key, "config_operation": operation, "value": value}
        for key, operation, value in configs
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": entries}
    return {"resources": [resource], **more}


SET, DELETE, APPEND, SUBTRACT = range(4)
INCREMENTAL: Final[dict[str, Request]] = {
    "set": lambda talk: changing(talk.topic().name, ("retention.ms", SET, "100000")),
    "set to null": lambda talk: changing(talk.topic().name, ("retention.ms", SET, None)),
    "set to a wrong value": lambda talk: changing(talk.topic().name, ("retention.ms", SET, "odd")),
    "set what is unknown": lambda talk: changing(talk.topic().name, ("odd", SET, "1")),
    "delete": lambda talk: changing(
        talk.topic(retention_ms="100000").name, ("retention.ms", DELETE, None)
    ),
    "delete what is not set": lambda talk: changing(
        talk.topic().name, ("retention.ms", DELETE, None)
    ),
    "delete what is unknown": lambda talk: changing(talk.topic().name, ("odd", DELETE, None)),
    "append": lambda talk: changing(talk.topic().name, ("cleanup.policy", APPEND, "compact")),
    "append what is there": lambda talk: changing(
        talk.topic().name, ("cleanup.policy", APPEND, "delete")
    ),
    "subtract": lambda talk: changing(
        talk.topic(cleanup_policy="compact,delete").name, ("cleanup.policy", SUBTRACT, "delete")
    ),
    "append to what is no list": lambda talk: changing(
        talk.topic().name, ("retention.ms", APPEND, "1")
    ),
    "operation 7": lambda talk: changing(talk.topic().name, ("retention.ms", 7, "1")),
    "a setting twice": lambda talk: changing(
        talk.topic().name, ("retention.ms", SET, "100000"), ("retention.ms", SET, "100000")
    ),
    "no settings": lambda talk: changing(talk.topic().name),
    "validation": lambda talk: changing(
        talk.topic().name, ("retention.ms", SET, "100000"), validate_only=True
    ),
    "an unknown topic": lambda talk: changing(unknown(talk).name, ("retention.ms", SET, "1")),
    "an empty topic name": lambda talk: changing("", ("retention.ms", SET, "1")),
    "an unknown type": lambda talk: changing("x", ("retention.ms", SET, "1"), kind=99),
    "no resources": lambda talk: {"resources": []},
    "a topic twice": lambda talk: {
        "resources": changing(talk.topic().name, ("retention.ms", SET, "100000"))["resources"] * 2
    },
}


def altered(talk: Talk, version: Version) -> None:
    """What is set replaces what was set before; what is described is what is set."""
    topic = talk.topic(retention_ms="100000").name
    talk.ask(admin_apis.ALTER_CONFIGS, version, altering(TOPIC, topic, ("segment.ms", "200000")))
    described = describing(TOPIC, topic, "retention.ms", "segment.ms", include_synonyms=True)
    talk.ask(admin_apis.DESCRIBE_CONFIGS, 4, described)


def changed(talk: Talk, version: Version) -> None:
    """What is set stays beside what was set before."""
    topic = talk.topic(retention_ms="100000", cleanup_policy="compact").name
    more = (("segment.ms", SET, "200000"), ("cleanup.policy", APPEND, "delete"))
    talk.ask(admin_apis.INCREMENTAL_ALTER_CONFIGS, version, changing(topic, *more))
    keys = ("retention.ms", "segment.ms", "cleanup.policy")
    talk.ask(admin_apis.DESCRIBE_CONFIGS, 4, describing(TOPIC, topic, *keys, include_synonyms=True))


def electing(topic: str, *indexes: int, kind: int = 0) -> Fields:
    """The fields of an ElectLeaders."""
    wanted = [{"topic": topic, "partitions": [*indexes]}]
    return {"election_type": kind, "topic_partitions": wanted, "timeout_ms": 5_000}


ELECT_LEADERS: Final[dict[str, Request]] = {
    "that lead": lambda talk: electing(talk.topic().name, 0),
    "of an unknown partition": lambda talk: electing(talk.topic().name, 0, 9),
    "of an unknown topic": lambda talk: electing(unknown(talk).name, 0),
    "of an empty topic name": lambda talk: electing("", 0),
    "of no partitions": lambda talk: electing(talk.topic().name),
    "of no topics": lambda talk: {"topic_partitions": [], "timeout_ms": 5_000},
    "unclean": lambda talk: electing(talk.topic().name, 0, kind=1),
    "of type 7": lambda talk: electing(talk.topic().name, 0, kind=7),
}
DESCRIBE_ACLS: Final[dict[str, Request]] = {
    "all": lambda talk: {
        "resource_type_filter": 1,
        "pattern_type_filter": 1,
        "operation": 1,
        "permission_type": 1,
    },
    "unknown types": lambda talk: {
        "resource_type_filter": 0,
        "pattern_type_filter": 0,
        "operation": 0,
        "permission_type": 0,
    },
}
DESCRIBE_CLUSTER: Final[dict[str, Request]] = {
    "brokers": lambda talk: {"endpoint_type": 1},
    "operations": lambda talk: {
        "endpoint_type": 1,
        "include_cluster_authorized_operations": True,
    },
    "with fenced brokers": lambda talk: {"endpoint_type": 1, "include_fenced_brokers": True},
    "controllers": lambda talk: {"endpoint_type": 2},
    "endpoints of type 7": lambda talk: {"endpoint_type": 7},
    "endpoints of type 0": lambda talk: {"endpoint_type": 0},
}


def in_parts(talk: Talk, limit: int, *names: str, **more: Any) -> Fields:
    """The fields of a DescribeTopicPartitions."""
    topics = [{"name": name} for name in sorted(names)]
    return {"topics": topics, "response_partition_limit": limit, "cursor": None, **more}


DESCRIBE_TOPIC_PARTITIONS: Final[dict[str, Request]] = {
    "a topic": lambda talk: in_parts(talk, 2_000, talk.topic(partitions=3).name),
    "a part": lambda talk: in_parts(talk, 2, talk.topic(partitions=3).name),
    "from a cursor": lambda talk: in_parts(
        talk,
        2_000,
        (name := talk.topic(partitions=3).name),
        cursor={"topic_name": name, "partition_index": 1},
    ),
    "from a cursor behind all": lambda talk: in_parts(
        talk,
        2_000,
        (name := talk.topic().name),
        cursor={"topic_name": name + "x", "partition_index": 0},
    ),
    "from partition -1": lambda talk: in_parts(
        talk,
        2_000,
        (name := talk.topic().name),
        cursor={"topic_name": name, "partition_index": -1},
    ),
    "from partition 9": lambda talk: in_parts(
        talk,
        2_000,
        (name := talk.topic().name),
        cursor={"topic_name": name, "partition_index": 9},
    ),
    "limit 0": lambda talk: in_parts(talk, 0, talk.topic().name),
    "limit -1": lambda talk: in_parts(talk, -1, talk.topic().name),
    "an unknown topic": lambda talk: in_parts(talk, 2_000, unknown(talk).name),
    "known and unknown topics": lambda talk: in_parts(
        talk, 2_000, talk.topic().name, unknown(talk).name
    ),
    "an invalid name": lambda talk: in_parts(talk, 2_000, "a b"),
    "an empty name": lambda talk: in_parts(talk, 2_000, ""),
    "a topic twice": lambda talk: in_parts(talk, 2_000, *[talk.topic().name] * 2),
}


def logs_of(topic: str, *partitions: int) -> Fields:
    """The fields of a DescribeLogDirs."""
    return {"topics": [{"topic": topic, "partitions": [*partitions]}]}


DESCRIBE_LOG_DIRS: Final[dict[str, Request]] = {
    "a log": lambda talk: logs_of(talk.topic(partitions=2).name, 0),
    "a log with records": lambda talk: logs_of(talk.produced(talk.topic()).name, 0),
    "a log twice": lambda talk: logs_of(talk.topic().name, 0, 0),
    "an unknown partition": lambda talk: logs_of(talk.topic().name, 0, 9),
    "an unknown topic": lambda talk: logs_of(unknown(talk).name, 0),
    "no partitions": lambda talk: logs_of(talk.topic().name),
    "no topics": lambda talk: {"topics": []},
}
LIST_CONFIG_RESOURCES: Final[dict[str, Request]] = {
    "brokers": lambda talk: {"resource_types": [BROKER]},
    "a type twice": lambda talk: {"resource_types": [BROKER, BROKER]},
    "metrics of clients": lambda talk: {"resource_types": [16]},
    "an unknown type": lambda talk: {"resource_types": [BROKER, 99]},
    "type 0": lambda talk: {"resource_types": [0]},
}


def leveled(feature: str, level: int, upgrade_type: int = 1, **more: Any) -> Fields:
    """The fields of an UpdateFeatures of one feature."""
    update = {
        "feature": feature,
        "max_version_level": level,
        "allow_downgrade": upgrade_type == 2,
        "upgrade_type": upgrade_type,
    }
    return {"feature_updates": [update], "timeout_ms": 5_000, "validate_only": True, **more}


UPDATE_FEATURES: Final[dict[str, Request]] = {
    "the level that is there": lambda talk: leveled("group.version", 1),
    "a higher level": lambda talk: leveled("group.version", 9),
    "a lower level": lambda talk: leveled("group.version", 0),
    "a level below 0": lambda talk: leveled("group.version", -1),
    "an unknown feature": lambda talk: leveled("no.such.feature", 1),
    "an empty name": lambda talk: leveled("", 1),
    "no features": lambda talk: {**leveled("", 1), "feature_updates": []},
}
UPDATE_FEATURES_TYPES: Final[dict[str, Request]] = {
    "type 9": lambda talk: leveled("group.version", 1, 9),
    "a downgrade": lambda talk: leveled("group.version", 0, 2),
}
SCRIPTS: Final[dict[str, Script]] = {"what was set": altered}
INCREMENTAL_SCRIPTS: Final[dict[str, Script]] = {"what was set": changed}


def cases() -> Iterator[Case]:
    """Yield all of them."""
    yield from requests(apis.METADATA, METADATA)
    yield from requests(apis.METADATA, METADATA_NAMES, 1)
    yield from requests(apis.METADATA, METADATA_CREATING, 4)
    yield from requests(apis.METADATA, METADATA_IDS, 12)
    yield from requests(apis.API_VERSIONS, API_VERSIONS)
    yield from requests(admin_apis.CREATE_TOPICS, CREATE_TOPICS)
    yield from requests(admin_apis.CREATE_TOPICS, CREATE_TOPICS_DEFAULTS, 4)
    yield from requests(admin_apis.DELETE_TOPICS, DELETE_TOPICS)
    yield from requests(admin_apis.DELETE_TOPICS, DELETE_TOPICS_IDS, 6)
    yield from requests(admin_apis.CREATE_PARTITIONS, CREATE_PARTITIONS)
    yield from requests(admin_apis.DESCRIBE_CONFIGS, DESCRIBE_CONFIGS)
    yield from requests(admin_apis.ALTER_CONFIGS, ALTER_CONFIGS)
    yield from scripts(admin_apis.ALTER_CONFIGS, SCRIPTS)
    yield from requests(admin_apis.INCREMENTAL_ALTER_CONFIGS, INCREMENTAL)
    yield from scripts(admin_apis.INCREMENTAL_ALTER_CONFIGS, INCREMENTAL_SCRIPTS)
    yield from requests(admin_apis.ELECT_LEADERS, ELECT_LEADERS)
    yield from requests(admin_apis.DESCRIBE_ACLS, DESCRIBE_ACLS)
    yield from requests(admin_apis.DESCRIBE_CLUSTER, DESCRIBE_CLUSTER)
    yield from requests(admin_apis.DESCRIBE_TOPIC_PARTITIONS, DESCRIBE_TOPIC_PARTITIONS)
    yield from requests(admin_apis.DESCRIBE_LOG_DIRS, DESCRIBE_LOG_DIRS)
    yield from requests(admin_apis.LIST_CONFIG_RESOURCES, LIST_CONFIG_RESOURCES)
    yield from requests(admin_apis.UPDATE_FEATURES, UPDATE_FEATURES)
    yield from requests(admin_apis.UPDATE_FEATURES, UPDATE_FEATURES_TYPES, 1)

"""Conversations about consumer groups, of both protocols, and their offsets."""

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from minibroker.protocol.kafka import admin_apis, apis
from minibroker.protocol.kafka.schema import Version
from tests.interop.conversations.case import Case, Request, Script, requests, scripts
from tests.interop.conversations.records import UNKNOWN_ID, unknown
from tests.interop.conversations.talk import LOOK_EVERY_S, Fields, Talk, Topic

SUBSCRIPTION: Final = bytes(2 + 4) + b"\xff" * 4  # version 0, no topics, no user data
RANGE: Final = {"name": "range", "metadata": SUBSCRIPTION}
BEATS_MAX: Final = 100  # until a member hears of a rebalance
ROUND_ROBIN: Final = {"name": "roundrobin", "metadata": SUBSCRIPTION}


def joining(talk: Talk, **more: Any) -> Fields:
    """The fields of a JoinGroup of a new member."""
    return {
        "group_id": f"{talk.name}-g",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 2_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [RANGE],
        **more,
    }


class Member:
    """A member of a group that has its assignment."""

    def __init__(self, talk: Talk, **more: Any) -> None:
        asked = joining(talk, **more)
        joined = talk.prepare(apis.JOIN_GROUP, asked)
        if joined.error_code.name == "member_id_required":
            joined = talk.prepare(apis.JOIN_GROUP, {**asked, "member_id": joined.member_id})
        assert not joined.error_code, joined
        self.id: str = joined.member_id
        self.generation: int = joined.generation_id
        self.group: str = asked["group_id"]
        self.fields = {"group_id": self.group, "member_id": self.id, "generation_id": 1}
        synced = {
            **self.fields,
            "group_instance_id": more.get("group_instance_id"),
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [{"member_id": self.id, "assignment": b"all"}],
        }
        assert not talk.prepare(apis.SYNC_GROUP, synced).error_code


def joined(**more: Any) -> Request:
    """A JoinGroup of a new group."""
    return lambda talk: joining(talk, **more)


JOIN: Final[dict[str, Request]] = {
    "an unknown member": joined(member_id="unknown"),
    "no group id": joined(group_id=""),
    "a session too short": joined(session_timeout_ms=1),
    "a session too long": joined(session_timeout_ms=10**8),
    "session -1": joined(session_timeout_ms=-1),
    "no protocol": joined(protocols=[]),
    "no protocol type": joined(protocol_type=""),
    "an empty instance id": joined(group_instance_id=""),
}


def join(talk: Talk, version: Version) -> None:
    """A member joins, gets its assignment, and joins again."""
    first = talk.ask(apis.JOIN_GROUP, version, joining(talk))
    member = {"member_id": first.member_id}
    talk.ask(apis.JOIN_GROUP, version, joining(talk, **member))
    synced = {
        "group_id": f"{talk.name}-g",
        "generation_id": 1,
        **member,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{**member, "assignment": b"all"}],
    }
    talk.prepare(apis.SYNC_GROUP, synced)
    talk.ask(apis.JOIN_GROUP, version, joining(talk, **member))


def join_static(talk: Talk, version: Version) -> None:
    """A static member that comes back, with the same protocols and with others."""
    static = {"group_instance_id": "i"}
    talk.ask(apis.JOIN_GROUP, version, joining(talk, **static))
    talk.ask(apis.JOIN_GROUP, version, joining(talk, **static))
    talk.ask(apis.JOIN_GROUP, version, joining(talk, **static, member_id="another"))
    other = {"protocols": [RANGE, ROUND_ROBIN]}
    talk.ask(apis.JOIN_GROUP, version, joining(talk, **static, **other))


def join_inconsistent(talk: Talk, version: Version) -> None:
    """Members that share no protocol, or no protocol type, with the group."""
    Member(talk)
    talk.ask(apis.JOIN_GROUP, version, joining(talk, protocols=[ROUND_ROBIN]))
    talk.ask(apis.JOIN_GROUP, version, joining(talk, protocol_type="connect"))


def join_together(talk: Talk, version: Version) -> None:
    """A second member: the first hears of the rebalance, joins again, and leads."""
    first = Member(talk)
    offered = {"protocols": [ROUND_ROBIN, RANGE]}
    if version >= 4:
        asked = joining(talk, **offered)
        offered["member_id"] = talk.ask(apis.JOIN_GROUP, version, asked, 2).member_id
    talk.send(apis.JOIN_GROUP, version, joining(talk, **offered), 2)
    for _ in range(BEATS_MAX):
        if talk.prepare(apis.HEARTBEAT, first.fields).error_code:
            break
        time.sleep(LOOK_EVERY_S)
    talk.ask(apis.JOIN_GROUP, version, joining(talk, member_id=first.id))
    talk.hear(2)


JOIN_SCRIPTS: Final[dict[str, Script]] = {
    "a member": join,
    "other protocols than the group": join_inconsistent,
    "a second member": join_together,
}
STATIC_SCRIPTS: Final[dict[str, Script]] = {"a static member": join_static}


def of_member(change: Callable[[Member], Fields] = lambda member: {}, **more: Any) -> Request:
    """The fields of a request of a member, changed."""

    def request(talk: Talk) -> Fields:
        member = Member(talk, **more)
        return {**member.fields, **change(member)}

    return request


def of_no_group(talk: Talk) -> Fields:
    """The fields of a request about a group that does not exist."""
    return {"group_id": f"{talk.name}-none", "member_id": "m", "generation_id": 1}


HEARTBEAT: Final[dict[str, Request]] = {
    "a member": of_member(),
    "an unknown member": of_member(lambda member: {"member_id": "unknown"}),
    "no member id": of_member(lambda member: {"member_id": ""}),
    "a newer generation": of_member(lambda member: {"generation_id": 2}),
    "an older generation": of_member(lambda member: {"generation_id": 0}),
    "generation -1": of_member(lambda member: {"generation_id": -1}),
    "an unknown group": of_no_group,
    "no group id": of_member(lambda member: {"group_id": ""}),
}
HEARTBEAT_STATIC: Final[dict[str, Request]] = {
    "a static member": of_member(lambda member: {"group_instance_id": "i"}, group_instance_id="i"),
    "a fenced static member": of_member(
        lambda member: {"group_instance_id": "i", "member_id": "older"}, group_instance_id="i"
    ),
    "an unknown instance id": of_member(lambda member: {"group_instance_id": "other"}),
}
SYNC: Final[dict[str, Request]] = {
    **{
        name: (
            lambda talk, request=request: {
                **request(talk),
                "protocol_type": "consumer",
                "protocol_name": "range",
            }
        )
        for name, request in HEARTBEAT.items()
    },
    "another protocol": of_member(
        lambda member: {"protocol_type": "consumer", "protocol_name": "roundrobin"}
    ),
    "another protocol type": of_member(
        lambda member: {"protocol_type": "connect", "protocol_name": "range"}
    ),
    "no protocol": of_member(),
    "an assignment for another member": of_member(
        lambda member: {
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [{"member_id": "other", "assignment": b"some"}],
        }
    ),
}


def leaving(talk: Talk, member: str, instance: str | None = None, group: str = "g") -> Fields:
    """The fields of a LeaveGroup."""
    members = [{"member_id": member, "group_instance_id": instance}]
    return {"group_id": f"{talk.name}-{group}", "member_id": member, "members": members}


LEAVE: Final[dict[str, Request]] = {
    "a member": lambda talk: leaving(talk, Member(talk).id),
    "an unknown member": lambda talk: leaving(talk, Member(talk).id + "x"),
    "no member id": lambda talk: leaving(talk, Member(talk).id and ""),
    "an unknown group": lambda talk: leaving(talk, "m", None, "none"),
    "no group id": lambda talk: {**leaving(talk, "m"), "group_id": ""},
}
LEAVE_MANY: Final[dict[str, Request]] = {
    "no members": lambda talk: {"group_id": Member(talk).group, "members": []},
    "a static member by its instance id": lambda talk: leaving(
        talk, Member(talk, group_instance_id="i").id and "", "i"
    ),
    "a static member with another member id": lambda talk: leaving(
        talk, Member(talk, group_instance_id="i").id + "x", "i"
    ),
    "an unknown instance id": lambda talk: leaving(talk, Member(talk).id and "", "other"),
    "known and unknown members": lambda talk: {
        "group_id": f"{talk.name}-g",
        "members": [{"member_id": Member(talk).id}, {"member_id": "unknown"}],
    },
}


def committing(topic: Topic, offset: int = 5, index: int = 0, **more: Any) -> dict[str, Any]:
    """The fields of an OffsetCommit without its group."""
    partition = {"partition_index": index, "committed_offset": offset, "committed_metadata": ""}
    partition.update(more)
    return {"topics": [{"name": topic.name, "topic_id": topic.id, "partitions": [partition]}]}


def simple(talk: Talk) -> Fields:
    """The fields of a group without members."""
    return {"group_id": f"{talk.name}-g", "generation_id_or_member_epoch": -1, "member_id": ""}


def committed_alone(**more: Any) -> Request:
    """A commit without a membership."""
    return lambda talk: {**simple(talk), **committing(talk.topic(), **more)}


def committed(**change: Any) -> Request:
    """A commit of a member, changed."""

    def request(talk: Talk) -> Fields:
        member = Member(talk)
        own = {
            "group_id": member.group,
            "generation_id_or_member_epoch": 1,
            "member_id": member.id,
        }
        return {**own, **committing(talk.topic()), **change}

    return request


OFFSET_COMMIT: Final[dict[str, Request]] = {
    "without a membership": committed_alone(),
    "offset -1": committed_alone(offset=-1),
    "offset -2": committed_alone(offset=-2),
    "an unknown partition": committed_alone(index=9),
    "partition -1": committed_alone(index=-1),
    "null metadata": committed_alone(committed_metadata=None),
    "metadata too large": committed_alone(committed_metadata="x" * 5_000),
    "a leader epoch": committed_alone(committed_leader_epoch=7),
    "a member": committed(),
    "an unknown member": committed(member_id="unknown"),
    "a newer generation": committed(generation_id_or_member_epoch=2),
    "an older generation": committed(generation_id_or_member_epoch=0),
    "generation -1 of a group with members": committed(
        generation_id_or_member_epoch=-1, member_id=""
    ),
    "an unknown instance id": committed(group_instance_id="other"),
    "an unknown group with a generation": lambda talk: {
        "group_id": f"{talk.name}-none",
        "generation_id_or_member_epoch": 1,
        "member_id": "m",
        **committing(talk.topic()),
    },
    "an unknown topic": lambda talk: {**simple(talk), **committing(unknown(talk))},
    "no topics": lambda talk: {**simple(talk), "topics": []},
    "no group id": lambda talk: {**simple(talk), **committing(talk.topic()), "group_id": ""},
}


def with_commit(talk: Talk) -> Topic:
    """A topic with two partitions; the group has committed an offset of the first."""
    topic = talk.topic(partitions=2)
    asked = {**simple(talk), **committing(topic, 5, 0, committed_metadata="note")}
    told = talk.prepare(apis.OFFSET_COMMIT, asked)
    assert not told.topics[0].partitions[0].error_code, told
    return topic


def offsets_of(
    talk: Talk, topics: list[tuple[Topic, list[int]]] | None, group: str = "g", **more: Any
) -> Fields:
    """The fields of an OffsetFetch of one group, for all versions. `more` is the member."""
    own = {
        "topics": None
        if topics is None
        else [
            {"name": topic.name, "topic_id": topic.id, "partition_indexes": indexes}
            for topic, indexes in topics
        ]
    }
    old = {
        "topics": None
        if topics is None
        else [{"name": topic.name, "partition_indexes": indexes} for topic, indexes in topics]
    }
    name = f"{talk.name}-{group}" if group else ""
    return {"group_id": name, **old, "groups": [{"group_id": name, **own, **more}]}


OFFSET_FETCH: Final[dict[str, Request]] = {
    "a committed offset": lambda talk: offsets_of(talk, [(with_commit(talk), [0])]),
    "a partition without a commit": lambda talk: offsets_of(talk, [(with_commit(talk), [0, 1])]),
    "an unknown partition": lambda talk: offsets_of(talk, [(with_commit(talk), [0, 9])]),
    "an unknown topic": lambda talk: offsets_of(
        talk, [(with_commit(talk), [0]), (unknown(talk), [0])]
    ),
    "no topics": lambda talk: offsets_of(talk, with_commit(talk) and []),
    "an unknown group": lambda talk: offsets_of(talk, [(talk.topic(), [0])], "none"),
    "no group id": lambda talk: offsets_of(talk, [(talk.topic(), [0])], ""),
    "stable offsets": lambda talk: {
        **offsets_of(talk, [(with_commit(talk), [0])]),
        "require_stable": True,
    },
    "a partition twice": lambda talk: offsets_of(talk, [(with_commit(talk), [0, 0])]),
}
OFFSET_FETCH_ALL: Final[dict[str, Request]] = {
    "all topics": lambda talk: offsets_of(talk, with_commit(talk) and None),
    "all topics of an unknown group": lambda talk: offsets_of(talk, None, "none"),
}
OFFSET_FETCH_MANY: Final[dict[str, Request]] = {
    "no groups": lambda talk: {"groups": []},
    "two groups": lambda talk: {
        "groups": [
            *offsets_of(talk, with_commit(talk) and None)["groups"],
            *offsets_of(talk, None, "none")["groups"],
        ]
    },
    "an unknown member": lambda talk: offsets_of(
        talk, with_commit(talk) and None, member_id="m", member_epoch=3
    ),
}
FIND_COORDINATOR: Final[dict[str, Request]] = {
    "of a group": lambda talk: {"key": "g", "coordinator_keys": ["g"]},
    "of no group id": lambda talk: {"key": "", "coordinator_keys": [""]},
    "of type 7": lambda talk: {"key": "g", "coordinator_keys": ["g"], "key_type": 7},
    "of type -1": lambda talk: {"key": "g", "coordinator_keys": ["g"], "key_type": -1},
    "of two groups": lambda talk: {"key": "g", "coordinator_keys": ["g", "h"]},
    "of no groups": lambda talk: {"key": "g", "coordinator_keys": []},
    "of a share group": lambda talk: {"key": "g", "coordinator_keys": ["g"], "key_type": 2},
}
DESCRIBE_GROUPS: Final[dict[str, Request]] = {
    "a group with a member": lambda talk: {"groups": [Member(talk).group]},
    "a group with a static member": lambda talk: {
        "groups": [Member(talk, group_instance_id="i").group]
    },
    "a group with offsets only": lambda talk: {"groups": [with_commit(talk) and f"{talk.name}-g"]},
    "an unknown group": lambda talk: {"groups": [f"{talk.name}-none"]},
    "no group id": lambda talk: {"groups": [""]},
    "no groups": lambda talk: {"groups": []},
    "a group twice": lambda talk: {"groups": [Member(talk).group] * 2},
    "operations": lambda talk: {
        "groups": [Member(talk).group],
        "include_authorized_operations": True,
    },
    "a group of the consumer protocol": lambda talk: {"groups": [Consumer(talk).group]},
}
LIST_GROUPS: Final[dict[str, Request]] = {
    "of no state": lambda talk: {"states_filter": ["Dying"], "types_filter": []},
    "of an unknown type": lambda talk: {"states_filter": [], "types_filter": ["odd"]},
    "stable ones": lambda talk: {
        "states_filter": [Member(talk).group and "Stable"],
        "types_filter": ["classic"],
    },
    "in lower case": lambda talk: {
        "states_filter": [Member(talk).group and "stable"],
        "types_filter": ["Classic"],
    },
    "empty ones": lambda talk: {
        "states_filter": [with_commit(talk) and "Empty"],
        "types_filter": ["classic"],
    },
}
DELETE_GROUPS: Final[dict[str, Request]] = {
    "a group with offsets only": lambda talk: {
        "groups_names": [with_commit(talk) and f"{talk.name}-g"]
    },
    "a group with a member": lambda talk: {"groups_names": [Member(talk).group]},
    "an unknown group": lambda talk: {"groups_names": [f"{talk.name}-none"]},
    "no group id": lambda talk: {"groups_names": [""]},
    "no groups": lambda talk: {"groups_names": []},
    "a group twice": lambda talk: {
        "groups_names": [with_commit(talk) and f"{talk.name}-g", f"{talk.name}-g"]
    },
    "a group of the consumer protocol": lambda talk: {"groups_names": [Consumer(talk).group]},
}


def deleting(talk: Talk, topic: str, *indexes: int, group: str = "g") -> Fields:
    """The fields of an OffsetDelete."""
    partitions = [{"partition_index": index} for index in indexes]
    topics = [{"name": topic, "partitions": partitions}]
    return {"group_id": f"{talk.name}-{group}", "topics": topics}


OFFSET_DELETE: Final[dict[str, Request]] = {
    "a committed offset": lambda talk: deleting(talk, with_commit(talk).name, 0),
    "a partition without a commit": lambda talk: deleting(talk, with_commit(talk).name, 1),
    "an unknown partition": lambda talk: deleting(talk, with_commit(talk).name, 0, 9),
    "an unknown topic": lambda talk: deleting(talk, with_commit(talk).name + "x", 0),
    "an unknown group": lambda talk: deleting(talk, talk.topic().name, 0, group="none"),
    "no topics": lambda talk: {"group_id": with_commit(talk) and f"{talk.name}-g", "topics": []},
    "of a group with a member of another kind": lambda talk: deleting(
        talk, Member(talk).group and talk.topic().name, 0
    ),
}


def beating(talk: Talk, topic: str = "", **more: Any) -> Fields:
    """The fields of the first ConsumerGroupHeartbeat of a member."""
    return {
        "group_id": f"{talk.name}-c",
        "member_id": "member",
        "member_epoch": 0,
        "rebalance_timeout_ms": 5_000,
        "subscribed_topic_names": [topic] if topic else [],
        "topic_partitions": [],
        **more,
    }


class Consumer:
    """A member of a group of the consumer protocol, with a topic of two partitions."""

    def __init__(self, talk: Talk, **more: Any) -> None:
        self.topic = talk.topic("c", partitions=2)
        self.fields = beating(talk, self.topic.name, **more)
        self.group: str = self.fields["group_id"]
        told = talk.prepare(apis.CONSUMER_GROUP_HEARTBEAT, self.fields)
        assert not told.error_code, told
        self.epoch: int = told.member_epoch

    def later(self, **more: Any) -> Fields:
        """A heartbeat of the member, in which nothing has changed but `more`."""
        return {
            "group_id": self.group,
            "member_id": "member",
            "member_epoch": self.epoch,
            "rebalance_timeout_ms": -1,
            "subscribed_topic_names": None,
            "topic_partitions": None,
            **more,
        }


def beaten(**more: Any) -> Request:
    """A first heartbeat."""
    return lambda talk: beating(talk, talk.topic().name, **more)


def beaten_later(**more: Any) -> Request:
    """A later heartbeat of a member."""
    return lambda talk: Consumer(talk).later(**more)


CONSUMER_HEARTBEAT: Final[dict[str, Request]] = {
    "a new member": beaten(),
    "a new member without topics": lambda talk: beating(talk),
    "an unknown topic": lambda talk: beating(talk, unknown(talk).name),
    "no group id": beaten(group_id=""),
    "no member id": beaten(member_id=""),
    "an empty instance id": beaten(instance_id=""),
    "an empty rack": beaten(rack_id=""),
    "no rebalance timeout": beaten(rebalance_timeout_ms=-1),
    "rebalance timeout 0": beaten(rebalance_timeout_ms=0),
    "owned partitions of a new member": beaten(
        topic_partitions=[{"topic_id": UNKNOWN_ID, "partitions": [0]}]
    ),
    "null partitions of a new member": beaten(topic_partitions=None),
    "no subscription": beaten(subscribed_topic_names=None),
    "an unknown assignor": beaten(server_assignor="odd"),
    "the range assignor": beaten(server_assignor="range"),
    "a static member": beaten(instance_id="i"),
    "an epoch of an unknown group": beaten(member_epoch=5),
    "an unknown member that leaves": beaten(member_epoch=-1),
    "a dynamic member that leaves for a while": beaten(member_epoch=-2),
    "epoch -3": beaten(member_epoch=-3),
    "a member": beaten_later(),
    "a newer epoch": beaten_later(member_epoch=99),
    "an older epoch": beaten_later(member_epoch=0),
    "an unknown member": beaten_later(member_id="unknown"),
    "a member that leaves": beaten_later(member_epoch=-1),
    "a changed assignor": beaten_later(server_assignor="range"),
    "a changed subscription": beaten_later(subscribed_topic_names=[]),
    "partitions of a member that it does not own": beaten_later(
        topic_partitions=[{"topic_id": UNKNOWN_ID, "partitions": [0]}]
    ),
    "a group of classic members": lambda talk: beating(
        talk, talk.topic().name, group_id=Member(talk).group
    ),
}
CONSUMER_PATTERN: Final[dict[str, Request]] = {
    "a pattern": beaten(subscribed_topic_regex="x.*", subscribed_topic_names=None),
    "a wrong pattern": beaten(subscribed_topic_regex="(", subscribed_topic_names=None),
    "a pattern and names": beaten(subscribed_topic_regex="x.*"),
    "an empty pattern": beaten(subscribed_topic_regex="", subscribed_topic_names=None),
}


def static_consumer(talk: Talk, version: Version) -> None:
    """A static member that leaves for a while, comes back, and is replaced."""
    consumer = Consumer(talk, instance_id="i")
    api, static = apis.CONSUMER_GROUP_HEARTBEAT, {"instance_id": "i"}
    talk.ask(api, version, consumer.later(member_epoch=-2, **static))
    back = beating(talk, consumer.topic.name, member_id="second", **static)
    talk.ask(api, version, back)
    third = beating(talk, consumer.topic.name, member_id="third", **static)
    talk.ask(api, version, third)
    talk.ask(api, version, consumer.later(**static))


def second_consumer(talk: Talk, version: Version) -> None:
    """A second member gets a partition once the first has given it back."""
    api, first = apis.CONSUMER_GROUP_HEARTBEAT, Consumer(talk)
    second = beating(talk, first.topic.name, member_id="second")
    epoch = talk.ask(api, version, second).member_epoch
    told = talk.ask(api, version, first.later())
    owned = [{"topic_id": first.topic.id, "partitions": [0]}]
    if told.assignment is not None:
        owned = [
            {"topic_id": one.topic_id.bytes, "partitions": [*one.partitions]}
            for one in told.assignment.topic_partitions
        ]
    talk.ask(api, version, first.later(topic_partitions=owned))
    later = {**first.later(), "member_id": "second", "member_epoch": epoch}
    talk.ask(api, version, later)


CONSUMER_SCRIPTS: Final[dict[str, Script]] = {
    "a static member that comes back": static_consumer,
    "a second member": second_consumer,
}
CONSUMER_DESCRIBE: Final[dict[str, Request]] = {
    "a group with a member": lambda talk: {"group_ids": [Consumer(talk).group]},
    "operations": lambda talk: {
        "group_ids": [Consumer(talk).group],
        "include_authorized_operations": True,
    },
    "an unknown group": lambda talk: {"group_ids": [f"{talk.name}-none"]},
    "a classic group": lambda talk: {"group_ids": [Member(talk).group]},
    "no group id": lambda talk: {"group_ids": [""]},
    "no groups": lambda talk: {"group_ids": []},
    "a group twice": lambda talk: {"group_ids": [Consumer(talk).group] * 2},
}


def cases() -> Iterator[Case]:
    """Yield all of them."""
    yield from requests(apis.JOIN_GROUP, JOIN)
    yield from scripts(apis.JOIN_GROUP, JOIN_SCRIPTS)
    yield from scripts(apis.JOIN_GROUP, STATIC_SCRIPTS, 5)
    yield from requests(apis.HEARTBEAT, HEARTBEAT)
    yield from requests(apis.HEARTBEAT, HEARTBEAT_STATIC, 3)
    yield from requests(apis.SYNC_GROUP, SYNC)
    yield from requests(apis.LEAVE_GROUP, LEAVE)
    yield from requests(apis.LEAVE_GROUP, LEAVE_MANY, 3)
    yield from requests(apis.OFFSET_COMMIT, OFFSET_COMMIT)
    yield from requests(apis.OFFSET_FETCH, OFFSET_FETCH)
    yield from requests(apis.OFFSET_FETCH, OFFSET_FETCH_ALL, 2)
    yield from requests(apis.OFFSET_FETCH, OFFSET_FETCH_MANY, 8)
    yield from requests(apis.FIND_COORDINATOR, FIND_COORDINATOR)
    yield from requests(apis.DESCRIBE_GROUPS, DESCRIBE_GROUPS)
    yield from requests(apis.LIST_GROUPS, LIST_GROUPS, 5)
    yield from requests(apis.DELETE_GROUPS, DELETE_GROUPS)
    yield from requests(admin_apis.OFFSET_DELETE, OFFSET_DELETE)
    yield from requests(apis.CONSUMER_GROUP_HEARTBEAT, CONSUMER_HEARTBEAT)
    yield from requests(apis.CONSUMER_GROUP_HEARTBEAT, CONSUMER_PATTERN, 1)
    yield from scripts(apis.CONSUMER_GROUP_HEARTBEAT, CONSUMER_SCRIPTS)
    yield from requests(apis.CONSUMER_GROUP_DESCRIBE, CONSUMER_DESCRIBE)

"""`partition reassign` against a cluster of a few dictionaries: what it asks for, and says."""

import re
import time
from typing import Any

import pytest

from minibroker.broker.properties.quotas import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
)
from minibroker.cli.broker import move
from minibroker.cli.topic import commands, reassign
from minibroker.cli.topic.reassignment_plan import plan_json, read_plan
from tests.support.fake_reassignments import FakeCluster
from tests.support.processes import run_here

T0, T1 = ("t", 0), ("t", 1)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """Four live brokers; the commands find them at any address, and wait for nothing."""
    cluster = FakeCluster({T0: (1, 2), T1: (2, 3)}, [1, 2, 3, 4])
    for module in (reassign, move, commands):
        monkeypatch.setattr(module, "opened_admin", cluster.opened)

    def sleep(_: float) -> None:
        for name in [*cluster.moves]:
            cluster.finish(name)
        cluster.move()

    monkeypatch.setattr(time, "sleep", sleep)
    return cluster


def typed(options: str, code: int = 0, stdin: str = "") -> tuple[str, str]:
    """Run `partition reassign` with these options; return its two outputs."""
    return ran(f"partition reassign {options}", code, stdin)


def ran(command: str, code: int = 0, stdin: str = "") -> tuple[str, str]:
    """Run a command; return its two outputs, the second in one line without frames."""
    done = run_here(*command.split(), stdin=stdin)
    assert done.returncode == code, done.stderr
    return done.stdout, " ".join(re.sub("[│╭╮╰╯─]", " ", done.stderr).split())


def test_a_move_under_way_is_planned_from_its_target(cluster: FakeCluster) -> None:
    """Not from all replicas that its partition has meanwhile: it would get as many for ever."""
    cluster.is_slow = True
    typed("--topic t --brokers 2,3,4 --no-wait")
    assert len(cluster.replicas[T0]) == 3
    out, _ = typed("--topic t --brokers 1,2,3 --dry-run")
    assert {len(nodes) for nodes in read_plan(out).values()} == {2}
    out, _ = typed("--topic t --brokers 1,2,3")
    assert out == "Reassigning 2 partitions.\nReassigned 2 partitions.\n"
    assert {len(nodes) for nodes in cluster.replicas.values()} == {2}


def test_a_plan_goes_by_the_sizes_of_logs(cluster: FakeCluster) -> None:
    """Of the largest replica that a broker tells; else by the number of partitions."""
    names = [("t", number) for number in range(4)]
    admin: Any = cluster
    cluster.replicas = {name: (1 + name[1] // 2,) for name in names}
    cluster.sizes = {1: {names[0]: 500, names[1]: 500}, 2: {names[2]: 10, names[1]: 3}}
    out, err = typed("--topic t --brokers 1,2 --dry-run")
    assert reassign.sizes_of(admin, names) == {names[0]: 500, names[1]: 500, names[2]: 10}
    plan = read_plan(out)
    assert plan[names[0]] != plan[names[1]]
    assert err == "% the size of 1 partition is not known, because no broker that has it answers"
    cluster.sizes = {}
    assert read_plan(typed("--topic t --brokers 1,2 --dry-run")[0]) == cluster.replicas


@pytest.mark.parametrize("options", ["--topic t --brokers 1,9,2", "--plan -"])
@pytest.mark.parametrize("more", ["", " --dry-run", " --throttle 5"])
def test_an_unknown_broker_is_refused(cluster: FakeCluster, options: str, more: str) -> None:
    """Before anything is set or moves; of a plan the whole."""
    _, err = typed(options + more, 1, stdin=plan_json({T0: (3, 2), T1: (9, 2)}))
    assert err.endswith("% ERROR: there is no broker '9'; known are 1, 2, 3, 4")
    assert not cluster.changes
    assert cluster.replicas == {T0: (1, 2), T1: (2, 3)}


@pytest.mark.parametrize("options", ["--topic t --brokers 2,3,4", "--plan -"])
def test_a_broker_that_is_down_is_warned_of(cluster: FakeCluster, options: str) -> None:
    """The plan is accepted all the same; a move that is verified or cancelled needs no warning."""
    del cluster.live[4]
    plan = plan_json({T0: (4, 2)})
    warning = "% WARNING: broker 4 is not alive, or fenced: what moves to it waits for it"
    assert warning in typed(f"{options} --dry-run", stdin=plan)[1]
    assert warning in typed(options, stdin=plan)[1]
    assert 4 in cluster.replicas[T0]
    assert warning not in typed("--plan - --cancel", stdin=plan)[1]


RATES = {LEADER_RATE: "5000000", FOLLOWER_RATE: "5000000"}
NO_RATES = dict.fromkeys(RATES)


def test_a_throttle_ends_with_the_move(cluster: FakeCluster) -> None:
    """It is set before anything copies, and nothing is left of it. What else is set stays."""
    cluster.topic_configs["t"]["retention.ms"] = "7"
    cluster.broker_configs[4] = {LEADER_RATE: "1"}
    cluster.is_slow = True
    _, err = typed("--topic t --brokers 2,3,4 --throttle 5000000")
    throttled = ("t", {LEADER_REPLICAS: "0:1,0:2", FOLLOWER_REPLICAS: "0:4"})
    assert cluster.changes_before == [throttled, *((str(node), RATES) for node in (1, 2, 4))]
    assert cluster.changes[4:] == [
        *((str(node), NO_RATES) for node in (1, 2, 4)),
        ("t", {LEADER_REPLICAS: None, FOLLOWER_REPLICAS: None}),
    ]
    assert cluster.topic_configs == {"t": {"retention.ms": "7"}}
    assert not any(cluster.broker_configs.values())
    assert "throttled to 5.0 MB a second on each of brokers 1,2,4: the throttle ends" in err
    assert err.endswith("% the throttle has ended")


def test_verify_ends_a_throttle_once_nothing_moves(cluster: FakeCluster) -> None:
    """Of the plan's partitions. Without a throttle it changes nothing."""
    cluster.is_slow = True
    plan, _ = typed("--topic t --brokers 2,3,4 --dry-run")
    typed("--plan - --throttle 5000000 --no-wait", stdin=plan)
    before = len(cluster.changes)
    _, err = typed("--plan - --verify", 1, stdin=plan)
    assert "2 partitions still move, so the throttle stays" in err
    assert cluster.topic_configs["t"][FOLLOWER_REPLICAS] == "0:4"
    assert len(cluster.changes) == before
    cluster.finish(T0)
    cluster.finish(T1)
    out, err = typed("--plan - --verify", stdin=plan)
    assert out == "2 of 2 partitions as planned.\n"
    assert err == "% the throttle has ended"
    assert cluster.topic_configs == {"t": {}}
    assert not any(cluster.broker_configs.values())
    before = len(cluster.changes)
    cluster.broker_configs[1] = {LEADER_RATE: "1"}
    assert typed("--plan - --verify", stdin=plan)[1] == ""
    assert len(cluster.changes) == before


def test_a_cancelled_move_has_no_throttle(cluster: FakeCluster) -> None:
    """Nor one of which nothing was accepted."""
    cluster.is_slow = True
    typed("--topic t --brokers 2,3,4 --throttle 9 --no-wait")
    assert cluster.broker_configs[4]
    typed("--topic t --cancel")
    assert cluster.topic_configs == {"t": {}}
    assert not any(cluster.broker_configs.values())


def test_a_throttle_can_be_changed_on_the_way(cluster: FakeCluster) -> None:
    """The same plan with another rate; the move goes on."""
    cluster.is_slow = True
    plan, _ = typed("--topic t --brokers 2,3,4 --dry-run")
    for rate in ("9", "5000000"):
        typed(f"--plan - --throttle {rate} --no-wait", stdin=plan)
        assert cluster.broker_configs[4] == dict.fromkeys(RATES, rate)
    assert cluster.topic_configs["t"] == {LEADER_REPLICAS: "0:1,0:2", FOLLOWER_REPLICAS: "0:4"}


def test_nothing_is_throttled_where_nothing_is_copied(cluster: FakeCluster) -> None:
    """A note says so."""
    _, err = typed("--plan - --throttle 9", stdin=plan_json({T0: (2, 1)}))
    assert "no partition gets another replica, so there is nothing to throttle" in err
    assert not cluster.changes


def test_a_topic_that_throttles_all_its_replicas_is_refused(cluster: FakeCluster) -> None:
    """Before anything moves."""
    cluster.topic_configs["t"][LEADER_REPLICAS] = "*"
    _, err = typed("--topic t --brokers 2,3,4 --throttle 9", 1)
    assert "topic t has leader.replication.throttled.replicas=* already" in err
    assert not cluster.changes
    assert cluster.replicas[T0] == (1, 2)


@pytest.mark.parametrize(
    "command",
    ["topic alter t -r 3", "broker drain 2", "broker replace 2 4", "broker remove 2 --yes"],
)
def test_other_commands_throttle_their_moves(cluster: FakeCluster, command: str) -> None:
    """In the same way."""
    code = 1 if "remove" in command else 0  # it runs still
    ran(f"{command} --throttle 5000000", code)
    assert ("4", RATES) in cluster.changes
    assert ("4", NO_RATES) in cluster.changes
    assert cluster.topic_configs == {"t": {}}


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("partition reassign --topic t --brokers 1,2 --throttle 0", "greater than or equal to 1"),
        ("partition reassign --topic t --brokers 1,2 --throttle -5", "greater than or equal to 1"),
        (
            "partition reassign --topic t --brokers 1,2 --throttle 10MB",
            "unable to parse string as an integer",
        ),
        (f"broker drain 1 --throttle {2**63}", "less than or equal to 9223372036854775807"),
        ("partition reassign --topic t --brokers 1,2 --verify --throttle 9", "is for a move, not"),
        ("partition reassign --topic t --cancel --throttle 9", "is for a move, not for --verify"),
        ("topic alter t -p 3 --throttle 9", "--throttle needs --replication-factor"),
    ],
)
def test_bad_throttles_are_refused(cluster: FakeCluster, command: str, reason: str) -> None:
    """Nothing is changed."""
    _, err = ran(command, 2)
    assert reason in err
    assert not cluster.changes
    assert cluster.replicas == {T0: (1, 2), T1: (2, 3)}


@pytest.mark.parametrize(
    ("options", "code", "reason"),
    [
        ("", 2, "give either --topic or --plan"),
        ("--topic t --plan -", 2, "give either --topic or --plan"),
        ("--topic t", 2, "--topic needs --brokers"),
        ("--plan - --brokers 1,2", 2, "--brokers and --partitions are for --topic"),
        ("--plan - --partitions 0", 2, "--brokers and --partitions are for --topic"),
        ("--topic t --brokers 1,2 --dry-run --verify", 2, "give at most one of"),
        ("--topic t --brokers 1,,2", 2, "'1,,2': numbers with commas between them"),
        ("--topic t --brokers 1,2,1", 2, "'1,2,1' has a number twice"),
        ("--topic t --partitions 0,0 --brokers 1,2", 2, "'0,0' has a number twice"),
        ("--topic nosuch --brokers 1,2", 1, "no topic 'nosuch'"),
        ("--topic t --partitions 7 --brokers 1,2", 1, "topic t has no partition 7"),
        ("--topic t --brokers 1", 1, "2 replicas need as many brokers; there are 1"),
        ("--topic t --brokers 1,2,9", 1, "there is no broker '9'; known are 1, 2, 3, 4"),
        ("--plan /nosuch", 1, "/nosuch cannot be read: No such file or directory"),
        ("--plan -", 1, "-: the plan is not of the form"),
    ],
)
def test_a_bad_reassignment_changes_nothing(
    cluster: FakeCluster, options: str, code: int, reason: str
) -> None:
    """The reason says what to do."""
    _, err = typed(options, code, stdin="nonsense")
    assert reason in err
    assert not cluster.changes
    assert cluster.replicas == {T0: (1, 2), T1: (2, 3)}


def test_partitions_that_are_refused_are_named(cluster: FakeCluster) -> None:
    """The others move; the throttle of all ends."""
    cluster.refused[T0] = "the target of t-0 has no broker"
    plan = plan_json({T0: (), T1: (4, 2)})
    out, err = typed("--plan - --throttle 5", 1, stdin=plan)
    assert out == "Reassigning 1 partition.\nReassigned 1 partition.\n"
    assert "% t-0: the target of t-0 has no broker" in err
    assert cluster.replicas == {T0: (1, 2), T1: (4, 2)}
    assert cluster.topic_configs == {"t": {}}
    assert not any(cluster.broker_configs.values())


def test_replicas_go_to_the_log_directories_of_a_plan(cluster: FakeCluster) -> None:
    """Those that are there move, and new ones are made there; `any` is left to the brokers."""
    cluster.is_slow = True
    plan = plan_json({T0: (1, 2), T1: (4, 2)}, {(*T0, 1): "e", (*T1, 4): "e"})
    assert '"log_dirs": ["e", "any"]' in plan
    out, err = typed("--plan -", stdin=plan)
    assert out.endswith("Moved 2 replicas to their log directories.\n")
    places = {one: path for one, path in cluster.log_dirs.items() if one[0]}
    assert places == {(*T0, 1): "e", (*T1, 4): "e"}
    assert '"log_dirs": ["any", "any"]' in err, "the present assignment"
    out, _ = typed("--plan - --verify", stdin=plan)
    assert out == "2 of 2 partitions as planned.\n"


def test_a_move_between_log_directories_is_verified_and_cancelled(cluster: FakeCluster) -> None:
    """Without a wait: what is not in place is named, with how far it is."""
    plan = plan_json({T0: (1, 2)}, {(*T0, 1): "e/"})
    cluster.stuck.add("e/")
    typed("--plan - --no-wait", stdin=plan)
    out, err = typed("--plan - --verify", 1, stdin=plan)
    assert out == "1 of 1 partition as planned.\n"
    assert err == "% t-0 on broker 1 is in d, 7 records behind in its copy, planned is e/"
    out, _ = typed("--plan - --cancel", stdin=plan)
    assert out.startswith("Cancelled the move of 1 replica to another log directory.\n")
    assert cluster.copies == {}


def test_a_move_that_its_broker_gives_up_is_told(cluster: FakeCluster) -> None:
    """The command does not wait for it for ever."""
    cluster.stuck.add("e")
    out, err = typed("--plan -", 1, stdin=plan_json({T0: (1, 2)}, {(*T0, 1): "e"}))
    assert "t-0 on broker 1 was not moved to e: its log says why" in err
    assert "Moved" not in out


def test_a_log_directory_that_is_none_is_told(cluster: FakeCluster) -> None:
    """The others are moved, and the reassignment is carried out."""
    plan = plan_json({T0: (1, 2), T1: (4, 2)}, {(*T0, 1): "nowhere", (*T0, 2): "e"})
    _, err = typed("--plan -", 1, stdin=plan)
    assert "t-0 on broker 1: nowhere is no log directory" in err
    assert cluster.log_dirs[*T0, 2] == "e"
    assert cluster.replicas[T1] == (4, 2)


def test_sizes_are_those_of_all_log_directories(cluster: FakeCluster) -> None:
    """Of the logs, and not of copies that move."""
    cluster.sizes = {1: {T0: 5}, 2: {T0: 9, T1: 3}}
    cluster.log_dirs = {(*T0, 2): "e", (*T1, 2): "e"}
    cluster.copies = {(*T0, 2): "d"}
    assert reassign.sizes_of(cluster, [T0, T1]) == {T0: 9, T1: 3}  # type: ignore[arg-type]

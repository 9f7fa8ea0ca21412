"""UPDATE_FEATURES, and which brokers the finalized feature level lets in."""

from dataclasses import replace
from random import Random

import pytest
import trio
import trio.testing

from minibroker.broker.controller import entries
from minibroker.broker.controller.cluster_id import ensure_cluster_id
from minibroker.broker.controller.features import plan_update
from minibroker.broker.controller.plans import Plan
from minibroker.broker.controller.state import FeatureLevels, State
from minibroker.broker.metadata.memory_store import MemoryStore
from minibroker.broker.metadata.store import ABSENT, Entry, StoreError
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.features import (
    FeatureUpdate,
    FeatureUpgrade,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from tests.unit.controller.electing import broker, partition, reviewed, state_of
from tests.unit.controller.fleet import open_fleet
from tests.unit.controller.test_node import REGISTRATION, lonely_node

OURS = "minibroker.version"
NEW, OLD = FeatureLevels(1, 2), FeatureLevels(1, 1)


def cluster(level: int = 1, **levels: FeatureLevels) -> State:
    """A cluster of three brokers; those that are named support other levels than 1 to 2."""
    state = state_of(partition())
    brokers = {
        node: replace(one, levels=levels.get(f"broker_{node}", NEW))
        for node, one in state.brokers.items()
    }
    return replace(state, brokers=brokers, feature_level=level)


def updated(
    state: State, *updates: FeatureUpdate, validate_only: bool = False
) -> Plan[UpdateFeaturesResponse]:
    """The plan for these updates."""
    request = UpdateFeaturesRequest(updates, validate_only=validate_only)
    return without_pause(plan_update(state, request))


def test_a_level_that_all_brokers_support_is_finalized() -> None:
    """In one write, of which all brokers are told."""
    plan = updated(cluster(), FeatureUpdate(OURS, 2), FeatureUpdate("group.version", 1))
    assert plan.answer == UpdateFeaturesResponse(features=(OURS, "group.version"))
    assert plan.writes == (entries.feature_level_put(2),)
    assert plan.state.feature_level == 2
    assert plan.change.has_other_brokers


def test_a_trial_and_a_repetition_change_nothing() -> None:
    """They are answered alike; nothing may be asked for, too."""
    for plan in (
        updated(cluster(), FeatureUpdate(OURS, 2), validate_only=True),
        updated(cluster(level=2), FeatureUpdate(OURS, 2)),
    ):
        assert plan.answer == UpdateFeaturesResponse(features=(OURS,))
        assert (plan.writes, plan.change.has_other_brokers) == ((), False)
    assert updated(cluster()).answer == UpdateFeaturesResponse()


def test_a_level_that_a_registered_broker_lacks_is_refused() -> None:
    """The answer names the broker, its levels, and what to do. A fenced broker counts."""
    state = replace(cluster(broker_2=OLD), fenced=frozenset({2}))
    plan = updated(state, FeatureUpdate("group.version", 1), FeatureUpdate(OURS, 2))
    assert plan.answer == UpdateFeaturesResponse(
        ErrorCode.INVALID_UPDATE_VERSION,
        "broker 2 supports minibroker.version 1, not 2: restart it with a version of minibroker"
        " that does",
    )
    assert (plan.writes, plan.state) == ((), state)


@pytest.mark.parametrize(
    ("wanted", "code", "says"),
    [
        (FeatureUpdate("kraft.version", 1), ErrorCode.INVALID_UPDATE_VERSION, "there is no fea"),
        (FeatureUpdate("group.version", 2), ErrorCode.INVALID_UPDATE_VERSION, "has level 1"),
        (FeatureUpdate("group.version", 0), ErrorCode.INVALID_UPDATE_VERSION, "has level 1"),
        (FeatureUpdate("group.version", -1, 2), ErrorCode.INVALID_UPDATE_VERSION, "has level 1"),
        (FeatureUpdate("group.version", 1, 9), ErrorCode.INVALID_UPDATE_VERSION, "type 9"),
        (FeatureUpdate("group.version", 0, 2), ErrorCode.FEATURE_UPDATE_FAILED, "this version"),
        (FeatureUpdate("x" * 30_000, 1), ErrorCode.INVALID_UPDATE_VERSION, "'xxx"),
        (FeatureUpdate(OURS, 1, 2), ErrorCode.FEATURE_UPDATE_FAILED, "never lowered"),
        (FeatureUpdate(OURS, 1, 3), ErrorCode.FEATURE_UPDATE_FAILED, "never lowered"),
        (FeatureUpdate(OURS, 1), ErrorCode.INVALID_UPDATE_VERSION, "has level 2"),
        (FeatureUpdate(OURS, -1, 3), ErrorCode.INVALID_UPDATE_VERSION, "has level 2"),
        (FeatureUpdate(OURS, 3), ErrorCode.INVALID_UPDATE_VERSION, "broker 1 supports"),
        (FeatureUpdate(OURS, 32_767), ErrorCode.INVALID_UPDATE_VERSION, "1 to 2, not 32767"),
        (FeatureUpdate(OURS, 3, 2), ErrorCode.INVALID_UPDATE_VERSION, "cannot be upgraded"),
    ],
)
def test_no_other_level_can_be_had(wanted: FeatureUpdate, code: ErrorCode, says: str) -> None:
    """All or nothing: the first error is that of the request."""
    plan = updated(cluster(level=2), FeatureUpdate("group.version", 1), wanted)
    assert plan.answer.error == code
    assert says in str(plan.answer.error_message)
    assert len(str(plan.answer.error_message)) < 250
    assert (plan.answer.features, plan.writes) == ((), ())


def test_a_kafka_feature_has_one_level() -> None:
    """It can be had, whichever change is allowed."""
    update = FeatureUpdate("transaction.version", 2, FeatureUpgrade.SAFE_DOWNGRADE)
    assert updated(cluster(), update).answer.error == 0


@pytest.mark.parametrize("levels", [OLD, FeatureLevels(3, 4)])
def test_a_broker_without_the_level_is_not_admitted(levels: FeatureLevels) -> None:
    """It leads nothing and is in no in-sync set, as if it were not registered; a line says why."""
    state = replace(state_of(partition()), feature_level=2)
    others = [replace(broker(node), levels=NEW) for node in (2, 3)]
    record, plan = reviewed(state, replace(broker(1), levels=levels), *others)
    assert (record.leader, record.isr) == (2, (2, 3))
    assert sorted(plan.state.brokers) == [2, 3]
    [line] = [report.text for report in plan.reports if "admitted" in report.text]
    assert f"Broker 1 is not admitted: it supports minibroker.version {levels}," in line
    record, plan = reviewed(state, replace(broker(1), levels=NEW), *others)
    assert record.leader == 1


async def test_a_new_cluster_has_the_last_level_of_its_first_broker() -> None:
    """A store that was made before there were levels has level 1. A broker that does not support
    the cluster's level stops there, before it reads a log."""
    store = MemoryStore()
    mark = await ensure_cluster_id(store, Random(1), None, NEW)
    assert mark.level_revision > ABSENT
    assert entries.read_feature_level((await store.get("")).entries) == 2
    with pytest.raises(StoreError) as refused:
        await ensure_cluster_id(store, Random(2), None, OLD)
    assert str(refused.value) == (
        "the cluster has minibroker.version 2, and this minibroker supports 1: use the newer"
        " version of minibroker that the other brokers have"
    )
    old = MemoryStore()
    await old.transact([], [entries.cluster_id_put("c")])
    assert await ensure_cluster_id(old, Random(1), None, OLD) == ("c", ABSENT)
    with pytest.raises(StoreError, match="use the older"):
        await ensure_cluster_id(old, Random(1), None, FeatureLevels(2, 3))


def test_a_registration_without_levels_supports_the_first() -> None:
    """It is of a broker from before there were levels."""
    put = entries.broker_put(replace(broker(1), levels=NEW), 0)
    assert b'"feature_levels": [1, 2]' in put.value
    old = put.value.replace(b'"feature_levels": [1, 2]', b'"x": 0')
    for value, levels in ((put.value, NEW), (old, OLD)):
        read = entries.read_brokers({put.key: Entry(value, 4)})
        assert read[1].levels == levels


async def test_a_broker_registers_only_under_the_level_that_it_has_checked(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A level that was finalized since its start stops a broker that does not support it; another
    one registers. All brokers are told of the level."""
    async with open_fleet(1) as fleet:
        await fleet[1].kill()
        await fleet[1].start(levels=NEW)
        await fleet.settled()
        request = UpdateFeaturesRequest((FeatureUpdate(OURS, 2),))
        answer = await fleet.controller.node.submit(request).wait()
        assert answer.error == 0
        assert (await fleet.state()).feature_level == 2
        await fleet.settled()
        assert fleet[1].replicas.image.feature_level == 2
        late = lonely_node(fleet.store, **{"node.id": "2"})
        with pytest.RaisesGroup(
            pytest.RaisesExc(StoreError, match="supports 1: use the newer"),
            flatten_subgroups=True,
            allow_unwrapped=True,
        ):
            with trio.fail_after(60):
                await late.run(replace(REGISTRATION, levels=OLD))
        await fleet[1].kill()
        await fleet[1].start(levels=NEW)
        await fleet.settled()
        assert 1 in entries.read_brokers((await fleet.store.get("brokers/")).entries)

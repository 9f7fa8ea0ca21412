"""A group's own settings: every broker knows them, and they outlive the controller."""

import trio

from minibroker.protocol.constants import (
    ApiKey,
    ConfigOperation,
    ConfigResourceType,
    ConfigSource,
    ErrorCode,
)
from minibroker.protocol.messages.config_descriptions import ConfigSynonym
from minibroker.protocol.messages.configs import (
    AlterConfigsRequest,
    ConfigChange,
    ConfigResource,
    DescribeConfigsRequest,
    ListConfigResourcesRequest,
    TopicConfigChanges,
)
from minibroker.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from minibroker.protocol.messages.groups import FindCoordinatorRequest
from tests.sim.trial import TOPIC, open_trial, play

GROUP = ConfigResourceType.GROUP
INTERVAL = "consumer.heartbeat.interval.ms"


async def alter(trial, *changes):
    """The error of changes of a group, sent to any broker."""
    request = AlterConfigsRequest((TopicConfigChanges("g", changes, GROUP),))
    answer = await trial.ask(trial.leader, ApiKey.ALTER_CONFIGS, request)
    return answer.topics[0].error


async def described(trial, broker):
    """A group's settings in force, by name, as a broker tells them."""
    request = DescribeConfigsRequest(resources=(ConfigResource(GROUP, "g"),))
    answer = await trial.ask(broker, ApiKey.DESCRIBE_CONFIGS, request)
    return {each.name: (each.value, each.is_default) for each in answer.resources[0].configs}


async def interval(trial):
    """What a member of the group is told by its coordinator."""
    while True:
        found = await trial.ask(trial.leader, ApiKey.FIND_COORDINATOR, FindCoordinatorRequest("g"))
        if not found.error:
            request = ConsumerGroupHeartbeatRequest(
                "g", "m", topics=(TOPIC,), owned=(), rebalance_timeout_ms=1000
            )
            broker = trial.cluster.broker(found.node_id)
            answer = await trial.ask(broker, ApiKey.CONSUMER_GROUP_HEARTBEAT, request)
            if not answer.error:
                return answer.heartbeat_interval_ms
        await trio.sleep(0.1)


def test_a_group_has_settings_of_its_own():
    """All brokers tell them, its coordinator goes by them, also after the controller was killed."""

    async def scenario():
        async with open_trial() as trial:
            assert await interval(trial) == 5000
            assert await alter(trial, ConfigChange(INTERVAL, "700")) == ErrorCode.NONE
            assert await interval(trial) == 700
            for broker in trial.cluster.brokers:
                assert (await described(trial, broker))[INTERVAL] == ("700", False)
            controller = trial.cluster.broker(await trial.controller())
            await controller.kill()
            await controller.start()
            await trial.settle()
            assert (await described(trial, controller))[INTERVAL] == ("700", False)
            delete = ConfigChange(INTERVAL, operation=ConfigOperation.DELETE)
            assert await alter(trial, delete) == ErrorCode.NONE
            assert (await described(trial, trial.leader))[INTERVAL] == ("5000", True)
            assert await interval(trial) == 5000

    play(scenario)


def test_settings_that_make_no_sense_are_refused():
    """Unknown ones, no numbers, a heartbeat that comes too late, a list's operations."""

    async def scenario():
        async with open_trial() as trial:
            for change in (
                ConfigChange("consumer.nonsense", "1"),
                ConfigChange(INTERVAL, "soon"),
                ConfigChange(INTERVAL, "0"),
                ConfigChange(INTERVAL, "45000"),
                ConfigChange(INTERVAL, "1", ConfigOperation.APPEND),
            ):
                assert await alter(trial, change) == ErrorCode.INVALID_CONFIG

    play(scenario)


def test_each_value_has_a_source():
    """The group's own value comes before the broker's; a list of resources names the group."""

    async def scenario():
        async with open_trial() as trial:
            assert await alter(trial, ConfigChange(INTERVAL, "700")) == ErrorCode.NONE
            wanted = DescribeConfigsRequest(
                resources=(ConfigResource(GROUP, "g", (INTERVAL,)),), include_synonyms=True
            )
            await trial.settle()
            answer = await trial.ask(trial.leader, ApiKey.DESCRIBE_CONFIGS, wanted)
            [entry] = answer.resources[0].configs
            assert (entry.value, entry.source) == ("700", ConfigSource.GROUP)
            own, default = entry.synonyms
            assert own == ConfigSynonym(INTERVAL, "700", ConfigSource.GROUP)
            assert default == ConfigSynonym(f"group.{INTERVAL}", "5000", ConfigSource.DEFAULT)
            request = ListConfigResourcesRequest((GROUP,))
            listed = await trial.ask(trial.leader, ApiKey.LIST_CONFIG_RESOURCES, request)
            assert [(each.resource_type, each.name) for each in listed.resources] == [(GROUP, "g")]

    play(scenario)

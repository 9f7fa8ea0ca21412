"""How a broker's picture of the cluster follows the controller's word (rows MET)."""

from dataclasses import replace
from typing import Any

from minibroker.broker.metadata.cache import merged, without
from minibroker.broker.metadata.model import BrokerImage, ClusterImage, PartitionImage
from minibroker.protocol.messages.control import (
    LiveBroker,
    PartitionState,
    TopicState,
    UpdateMetadataRequest,
)
from minibroker.protocol.messages.topics import ConfigEntry
from minibroker.protocol.types import Endpoint, NamedEndpoint, TopicPartition

ID = b"i" * 16
OTHER_ID = b"j" * 16


def update(**told: Any) -> UpdateMetadataRequest:
    return UpdateMetadataRequest(1, 3, 9, **told)


def topic(name: str = "t", topic_id: bytes = ID, count: int = 1, **configs: str) -> TopicState:
    entries = tuple(ConfigEntry(key.replace("_", "."), value) for key, value in configs.items())
    return TopicState(name, topic_id, entries, count)


def state(
    number: int = 0,
    leader: int = 1,
    *,
    name: str = "t",
    topic_id: bytes = ID,
    epochs: tuple[int, int] = (0, 0),
) -> PartitionState:
    return PartitionState(name, topic_id, number, leader, *epochs, (1, 2), (1, 2))


def image_of(*parts: TopicState | PartitionState) -> ClusterImage:
    topics = tuple(part for part in parts if isinstance(part, TopicState))
    states = tuple(part for part in parts if isinstance(part, PartitionState))
    return merged(ClusterImage(), update(topics=topics, partitions=states)).image


def partition(image: ClusterImage, number: int = 0, name: str = "t") -> PartitionImage:
    found = image.partition(TopicPartition(name, number))
    assert found is not None
    return found


def test_brokers_and_controller_are_replaced_wholly() -> None:
    """MET-01: who is not named any more is not live; what is said of nobody else stays."""
    image = image_of(topic(), state())
    both = (LiveBroker(1, "a", 1, 5), LiveBroker(2, "b", 2, 6, is_shutting_down=True))
    image = merged(image, update(brokers=both, cluster_id="c")).image
    assert image.brokers[2] == BrokerImage(2, Endpoint("b", 2), 6, is_shutting_down=True)
    image = merged(image, UpdateMetadataRequest(2, 4, 9, brokers=both[:1])).image
    assert list(image.brokers) == [1]
    assert (image.cluster_id, image.controller_id, image.controller_epoch) == ("c", 2, 4)
    assert partition(image).leader == 1


def test_the_feature_level_is_the_last_one_told() -> None:
    """A broker that was told nothing yet writes the formats of the first level."""
    assert image_of().feature_level == 1
    image = merged(image_of(), update(feature_level=2)).image
    assert image.feature_level == 2


def test_brokers_are_reached_by_listener() -> None:
    """Each address has a name; by one that a broker lacks, or that an older controller does not
    tell, it is reached where brokers reach it."""
    told = LiveBroker(1, "a", 1, 5, listeners=(NamedEndpoint("OUTSIDE", "b", 2),))
    image = merged(image_of(), update(brokers=(told, LiveBroker(2, "c", 3, 6)))).image
    assert image.brokers[1].seen_from("OUTSIDE") == Endpoint("b", 2)
    assert image.brokers[1].seen_from("INSIDE") == image.brokers[1].endpoint == Endpoint("a", 1)
    assert image.brokers[2].seen_from("OUTSIDE") == Endpoint("c", 3)


def test_listed_partitions_are_replaced_others_kept() -> None:
    """MET-01: an update changes what it names, within a topic too."""
    before = image_of(topic(count=2), state(0), state(1), topic("u", OTHER_ID))
    image = merged(before, update(partitions=(state(1, 2, epochs=(1, 1)),))).image
    assert partition(image, 0) == partition(before, 0)
    assert (partition(image, 1).leader, partition(image, 1).leader_epoch) == (2, 1)
    assert image.topics["u"] == before.topics["u"]


def test_a_part_of_a_full_image_takes_nothing_away() -> None:
    """What it does not name may come with the next part; `without` takes away what did not."""
    before = image_of(topic(), state(), topic("u", OTHER_ID), state(name="u", topic_id=OTHER_ID))
    change = merged(before, update(topics=(topic(),), partitions=(state(),), begins_image=True))
    assert change.removed == ()
    assert change.image.topics == before.topics
    assert list(without(change.image, ["u"]).topics) == ["t"]
    assert without(change.image, []) is change.image


def test_a_deleted_topic_goes_and_is_reported() -> None:
    """MET-02: leader -2 takes the topic out, of this id only."""
    before = image_of(topic(), state())
    change = merged(before, update(partitions=(state(0, -2, topic_id=OTHER_ID),)))
    assert change.image.topics == before.topics
    assert change.removed == ()
    change = merged(before, update(partitions=(state(0, -2),)))
    assert change.image.topics == {}
    assert change.removed == ("t",)


def test_a_topic_made_anew_takes_nothing_over() -> None:
    """MET-02: another id is another topic, deleted and made in one update or unseen in between."""
    before = image_of(topic(count=2), state(0, epochs=(7, 7)), state(1))
    anew = state(0, 2, topic_id=OTHER_ID)
    told = update(topics=(topic(topic_id=OTHER_ID),), partitions=(state(0, -2), anew))
    image, removed, _ = merged(before, told)
    assert image.topics["t"].id == OTHER_ID
    assert removed == ("t",)
    assert len(image.topics["t"].partitions) == 1
    assert (partition(image).leader, partition(image).leader_epoch) == (2, 0)


def test_a_partition_is_never_set_back() -> None:
    """An update that was under way on a broken connection cannot undo a newer one, be it full."""
    image = image_of(topic(), state(0, 2, epochs=(3, 4)))
    late = (state(0, 1, epochs=(3, 3)),)
    for begins_image in (False, True):
        told = update(topics=(topic(),), partitions=late, begins_image=begins_image)
        assert partition(merged(image, told).image).leader == 2


def test_a_deleted_topic_does_not_come_back_in_place_of_the_new_one() -> None:
    """An update that was under way on a broken connection names the topic that was deleted."""
    old = replace(topic(), creation=1)
    new = replace(topic(topic_id=OTHER_ID), creation=2)
    image = image_of(new, state(0, 2, topic_id=OTHER_ID))
    told = merged(image, update(topics=(old,), partitions=(state(0, 1, epochs=(5, 5)),)))
    assert (told.image.topics, told.removed, told.reconfigured) == (image.topics, (), ())


def test_partitions_may_come_in_any_order() -> None:
    """A topic whose partitions are told in several updates has those that were not told yet
    without leader and replicas."""
    image = image_of(topic(count=3), state(2))
    assert partition(image, 1) == PartitionImage(1, -1, -1, (), (), -1)
    image = merged(image, update(partitions=(state(1), state(4)))).image
    assert [p.leader for p in image.topics["t"].partitions] == [-1, 1, 1, -1, 1]


def test_changed_settings_are_named() -> None:
    """Topics that are new, made anew, or have other settings are reported as such."""
    told = update(topics=(topic(), topic("u", OTHER_ID)))
    change = merged(ClusterImage(), told)
    assert change.reconfigured == ("t", "u")
    assert merged(change.image, told).reconfigured == ()
    again = merged(change.image, update(topics=(topic(flush_ms="5"),)))
    assert again.reconfigured == ("t",)
    assert again.image.topics["t"].configs == {"flush.ms": "5"}
    assert merged(again.image, update(partitions=(state(),))).reconfigured == ()

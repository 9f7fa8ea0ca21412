"""The table of every property that a broker reads, by subject.

The fields of the subjects' classes are the table: each holds a value and carries the `Property`
that describes it. `Config` has all of them. A field's name is the property's, with underscores for
dots (asserted below).

The table has only properties that some part of the broker reads. A setting that is accepted and has
no effect is worse than an error, because its user relies on it. `kept` has the topic properties of
Kafka that change nothing a user could rely on.
"""

from dataclasses import fields
from typing import Final

from minibroker.broker.config_property import Property, attribute_of
from minibroker.broker.properties.brokers import Connections, Identity, Leadership, Replication
from minibroker.broker.properties.groups import Groups
from minibroker.broker.properties.listeners import Listeners
from minibroker.broker.properties.logs import Compaction, Segments, Topics, Upkeep
from minibroker.broker.properties.observation import Observation
from minibroker.broker.properties.quotas import Quotas
from minibroker.broker.properties.stores import Stores
from minibroker.broker.properties.transactions import Transactions

SUBJECTS: Final = (
    Identity,
    Listeners,
    Stores,
    Topics,
    Replication,
    Leadership,
    Quotas,
    Segments,
    Compaction,
    Upkeep,
    Groups,
    Transactions,
    Connections,
    Observation,
)
PROPERTIES: Final[dict[str, Property]] = {
    field.metadata["property"].name: field.metadata["property"]
    for subject in SUBJECTS
    for field in fields(subject)
}
TOPIC_PROPERTIES: Final[dict[str, Property]] = {
    row.topic_name: row for row in PROPERTIES.values() if row.topic_name is not None
}

for _subject in SUBJECTS:
    for _field in fields(_subject):
        _name = _field.metadata["property"].name
        assert _field.name == attribute_of(_name), f"{_field.name} does not spell {_name}"

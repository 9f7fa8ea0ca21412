"""What the words mean that `describe` prints, for its option --explain."""

from collections.abc import Mapping
from typing import Annotated, Final

import typer

from minibroker.cli.terminal import note

Explain = Annotated[
    bool, typer.Option("--explain", help="Say after the output what each word of it means.")
]

TOPIC: Final[Mapping[str, str]] = {
    "TopicId": "a topic that is deleted and created again has another id",
    "ReplicationFactor": "on how many brokers each partition is stored",
    "Configs": "the topic's own settings; `broker config ID` shows the defaults",
    "Leader": "the broker that takes and returns the records; none: nobody can write or read",
    "Replicas": "the brokers that store the partition; the first is the preferred leader",
    "Isr": "the replicas that are in sync: each has every committed record, and may become leader",
    "Elr, LastKnownElr": "empty here; Kafka's tool prints them",
}
GROUP: Final[Mapping[str, str]] = {
    "CURRENT-OFFSET": "the committed offset: the next record that the group reads after a restart",
    "LOG-END-OFFSET": "the offset that the next record of the partition gets",
    "LAG": "how many offsets the group is behind; if it grows and CURRENT-OFFSET stands still, a"
    " consumer hangs or fails",
    "CONSUMER-ID": "the member that reads the partition; -: no member does",
    "HOST, CLIENT-ID": "from where that member connects, and what it calls itself",
}
CLUSTER: Final[Mapping[str, str]] = {
    "Controller": "the broker that elects leaders; none: no leader is elected until there is one",
    "Live": "brokers with a session; a fenced one has registered, but may not lead yet",
    "UnderReplicated": "partitions with a replica out of sync",
    "UnderMinIsr": "partitions that refuse acks=all, because too few replicas are in sync",
    "Offline": "partitions without a leader",
    "Leaders, Replicas, InSync": "how many partitions a broker leads, stores, and is in sync of",
    "Epoch": "of the broker's registration: a restart makes a new one",
}


def explain(words: Mapping[str, str]) -> None:
    """Print a line for each word."""
    for word, meaning in words.items():
        note(f"{word}: {meaning}")

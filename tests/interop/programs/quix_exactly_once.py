"""python quix_exactly_once.py BOOTSTRAP APPLICATION DIRECTORY: counts the records of each word.

As ExactlyOnce.java, without a repartition topic.
"""

import sys

from quixstreams import Application, State

bootstrap, application, directory = sys.argv[1:]
app = Application(
    broker_address=bootstrap,
    consumer_group=application,
    auto_offset_reset="earliest",
    state_dir=directory,
    processing_guarantee="exactly-once",
    commit_interval=0.2,
    producer_extra_config={"transactional.id": application},
    consumer_extra_config={"session.timeout.ms": 6000, "heartbeat.interval.ms": 1000},
)
words = app.topic(f"{application}-in", key_deserializer="str", value_deserializer="str")
counts = app.topic(f"{application}-out", key_serializer="str", value_serializer="str")


def count(_: str, state: State) -> str:
    """Count the record."""
    counted = state.get("counted", 0) + 1
    state.set("counted", counted)
    return str(counted)


app.dataframe(words).apply(count, stateful=True).to_topic(counts)
app.run()

"""python quix_table.py BOOTSTRAP APPLICATION DIRECTORY: counts the records of each word.

As WordCount.java, without a repartition topic.
"""

import sys

from quixstreams import Application, State

bootstrap, application, directory = sys.argv[1:]
app = Application(
    broker_address=bootstrap,
    consumer_group=application,
    auto_offset_reset="earliest",
    state_dir=directory,
    commit_interval=0.5,
    consumer_extra_config={"session.timeout.ms": 6000, "heartbeat.interval.ms": 1000},
)
words = app.topic(f"{application}-words", key_deserializer="str", value_deserializer="str")
counts = app.topic(f"{application}-counts", key_serializer="str", value_serializer="str")


def count(number: str, state: State) -> str:
    """Count each record once."""
    found, last = state.get("counted", (0, -1))
    if int(number) > last:
        found += 1
        state.set("counted", (found, int(number)))
    return str(found)


app.dataframe(words).apply(count, stateful=True).to_topic(counts)
app.run()

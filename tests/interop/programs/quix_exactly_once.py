"""python quix_exactly_once.py BOOTSTRAP APPLICATION DIRECTORY: counts the records of each word.

As ExactlyOnce.java, without a repartition topic. The program ends if it does not come back to its
consumer in `COMMIT_S_MAX`: the commit of a transaction may wait for ever for the group's
coordinator (docs/kafka.md, "Bugs of clients"), and Quix Streams gives it no time limit.
"""

import faulthandler
import sys

from quixstreams import Application, State

COMMIT_S_MAX = 15.0

bootstrap, application, directory = sys.argv[1:]


def come_back(_: str) -> None:
    """Begin the time limit again; the consumer calls it when it is polled."""
    faulthandler.dump_traceback_later(COMMIT_S_MAX, exit=True)


app = Application(
    broker_address=bootstrap,
    consumer_group=application,
    auto_offset_reset="earliest",
    state_dir=directory,
    processing_guarantee="exactly-once",
    commit_interval=0.2,
    producer_extra_config={"transactional.id": application},
    consumer_extra_config={
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 1000,
        "statistics.interval.ms": 1000,
        "stats_cb": come_back,
    },
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

"""The clients for asyncio beside the blocking ones, and what it costs to be told of each record."""

from collections.abc import Iterator
from functools import partial

from tests.bench.rounds import Pair, Row, by_turns, create_topic, fresh_broker, millions, run_module

COUNT = 500_000
TOPIC = "bench"


def without_trio() -> Iterator[Row]:
    """Producing and consuming, by tasks and by threads; callbacks of records and of batches."""
    pair = by_turns(partial(_produce, "asyncio"), partial(_produce, "blocking"))
    yield _row("produce, asyncio", "the blocking producer", pair, 1.0)
    pair = by_turns(partial(_produce, "told of records"), partial(_produce, "told of batches"))
    yield _row("produce, blocking, a callback for each record", "one for each batch", pair, None)
    with fresh_broker() as broker:
        create_topic(broker.address, TOPIC, 1)
        options = ["--way", "send_many", "--count", COUNT]
        run_module("clients", "produce", broker.address, TOPIC, *options)

        def consume(way: str) -> float:
            options = ["--way", way, "--count", COUNT]
            return run_module("clients", "consume", broker.address, TOPIC, *options)[
                "records_per_s"
            ]

        pair = by_turns(partial(consume, "asyncio"), partial(consume, "blocking"))
    yield _row("consume by iteration, asyncio", "the blocking consumer", pair, 1.0)


def _produce(way: str) -> float:
    with fresh_broker() as broker:
        create_topic(broker.address, TOPIC, 1)
        options = ["--way", way, "--count", COUNT]
        return run_module("clients", "produce", broker.address, TOPIC, *options)["records_per_s"]


def _row(name: str, yardstick: str, pair: Pair, wanted: float | None) -> Row:
    return Row(
        name,
        millions(pair.ours),
        yardstick,
        millions(pair.theirs),
        f"{pair.ratio:.2f}",
        f"ratio >= {wanted:g}" if wanted else "",
        pair.ratio >= wanted if wanted else None,
    )


MEASURES = (without_trio,)

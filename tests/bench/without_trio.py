"""The clients for asyncio beside the blocking ones, and what it costs to be told of each record."""

from collections.abc import Iterator
from functools import partial

from tests.bench.rounds import (
    Pair,
    Row,
    all_by_turns,
    by_turns,
    create_topic,
    fresh_broker,
    millions,
    run_module,
)

COUNT = 500_000
TOPIC = "bench"
# An `await` for each record costs the interpreter about 0.1 us more than a plain call. What hands
# over many records at once has no reason to be slower; the rest is what a run may be off.
EACH_MIN = 0.8
MANY_MIN = 0.9


def without_trio() -> Iterator[Row]:
    """Producing and consuming, by tasks and by threads; callbacks of records and of batches."""
    for name, suffix, wanted in (("send", "", EACH_MIN), ("send_many", ", many", MANY_MIN)):
        pair = by_turns(
            partial(_produce, f"asyncio{suffix}"), partial(_produce, f"blocking{suffix}")
        )
        yield _row(f"produce by {name}, asyncio", "the blocking producer", pair, wanted)
    told = {"told of records": "a callback for each record", "told by futures": "futures kept"}
    pairs = all_by_turns(
        [partial(_produce, way) for way in told], partial(_produce, "told of batches")
    )
    for name, pair in zip(told.values(), pairs, strict=True):
        yield _row(f"produce, blocking, {name}", "a callback for each batch", pair, None)
    with fresh_broker() as broker:
        create_topic(broker.address, TOPIC, 1)
        options = ["--way", "send_many", "--count", COUNT]
        run_module("clients", "produce", broker.address, TOPIC, *options)

        def consume(way: str) -> float:
            options = ["--way", way, "--count", COUNT]
            return run_module("clients", "consume", broker.address, TOPIC, *options)[
                "records_per_s"
            ]

        for name, suffix, wanted in (("iteration", "", EACH_MIN), ("poll", ", many", MANY_MIN)):
            pair = by_turns(
                partial(consume, f"asyncio{suffix}"), partial(consume, f"blocking{suffix}")
            )
            yield _row(f"consume by {name}, asyncio", "the blocking consumer", pair, wanted)


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
        f"ratio >= {wanted}" if wanted else "",
        pair.ratio >= wanted if wanted else None,
    )


MEASURES = (without_trio,)

"""Headers that rot under running brokers: a cluster of three, and one broker that is alone.

What becomes of each bit is shown by tests/unit/test_damaged_headers.py. Here whole brokers and
clients meet some of them: nobody hangs, no record is left out or shown twice, no broker asks or
answers for ever, and what a group has committed does not move past what it was shown.

`make test` takes each bit once in each test, in one batch or another; `make soak` takes all pairs.
"""

from collections.abc import Mapping

import pytest
import trio

from minibroker.client import Consumer
from minibroker.client.errors import CorruptRecords
from minibroker.protocol.records.batch import iterate_headers
from minibroker.testing.cluster import SimulatedBroker
from minibroker.testing.disk import SimulatedFiles
from tests.sim.trial import NAME, TOPIC, Trial, open_trial, play, segment

COUNT = 10  # batches, of one record each
# A bit of a header by its byte, and what it is of.
BITS = {
    "offset, by one": (7, 0),
    "offset, far": (2, 1),
    "length, longer than the file": (9, 0),
    "length, negative": (8, 7),
    "length, shorter": (11, 3),
    "epoch": (13, 2),
    "magic": (16, 2),
}
FIRST_AND_MIDDLE = {"first": 0, "middle": 4}
BATCHES = {**FIRST_AND_MIDDLE, "last": COUNT - 1}


def in_batches(offsets: Mapping[str, int], begin: int) -> pytest.MarkDecorator:
    """Each bit in each of these batches; all but one for each bit only in soak. The first bit meets
    the batch of this number, the next one the next."""
    cases = []
    for number, bit in enumerate(BITS, begin):
        for at, (name, offset) in enumerate(offsets.items()):
            marks = () if at == number % len(offsets) else (pytest.mark.soak,)
            cases.append(pytest.param(bit, offset, marks=marks, id=f"{bit}-{name}"))
    return pytest.mark.parametrize(("bit", "offset"), cases)


def rot_header(broker: SimulatedBroker, offset: int, bit: str) -> None:
    """Flip a bit of the header of a batch."""
    headers = iterate_headers(broker.files.read_bytes(segment()))
    (begin,) = [at for at, header in headers if header.base_offset == offset]
    at, number = BITS[bit]
    broker.files.flip(segment(), begin + at, number)


@in_batches(BATCHES, 0)
def test_a_leader_that_finds_it_has_another_lead(bit: str, offset: int) -> None:
    """A consumer of a group gets every record once. Where the leader finds the damage it gives up,
    a sound replica leads, and the damaged one copies again. Where the consumer does, in the middle
    of an answer, its poll raises; once it has sought to where it stands, the leader finds it."""

    async def scenario() -> None:
        async with open_trial(is_watched=False) as trial:
            await trial.send(COUNT)
            damaged = trial.leader
            rot_header(damaged, offset, bit)
            assert await read_as_group(trial) == [*trial.acked.values()]
            if not trial.partition(damaged).is_leader:  # type: ignore[union-attr]
                await trial.send(5)
                await trial.settle()
                assert trial.records(damaged) == [*trial.acked.items()]

    play(scenario)


async def read_as_group(trial: Trial) -> list[bytes]:
    """All records that are committed, by a group whose offset is looked at after each poll."""
    seams = trial.world.seams("consumer")
    values: list[bytes] = []
    async with Consumer(
        trial.cluster.address, group_id="g", auto_offset_reset="earliest", seams=seams
    ) as consumer:
        await consumer.subscribe(TOPIC)
        with trio.fail_after(20):
            while len(values) < len(trial.acked):
                try:
                    values += [bytes(record.value or b"") for record in await consumer.poll(1.0)]
                except CorruptRecords as error:
                    consumer.seek(NAME, error.offset)
                assert consumer.position(NAME) in (None, len(values))
                await consumer.commit()
                committed = (await consumer.committed(NAME))[NAME]
                assert (0 if committed is None else committed.offset) == len(values)
    return values


@in_batches(FIRST_AND_MIDDLE, 0)
def test_a_follower_that_begins_there_gets_a_sound_leader(bit: str, offset: int) -> None:
    """A follower on an empty disk meets the damage: it joins, from a sound replica, and so does
    the one that was damaged."""

    async def scenario() -> None:
        async with open_trial(is_watched=False) as trial:
            await trial.send(COUNT)
            leader, empty = trial.leader, trial.followers[0]
            await empty.kill()
            empty.files = SimulatedFiles(trial.world.rng("new disk"))
            rot_header(leader, offset, bit)
            await empty.start()
            await trial.until(lambda agreed: agreed.leader not in (-1, leader.node_id))
            await trial.send(5)
            await trial.settle()

    play(scenario)


@in_batches(BATCHES, 1)
def test_one_that_is_alone_names_the_place(
    bit: str, offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    """With a single replica a consumer gets what lies before, then an error that names topic,
    partition and offset, also if it tries again; what lies behind comes after a seek. An epoch in
    the middle of an answer concerns no consumer."""

    async def scenario() -> None:
        async with open_trial(is_watched=False, replicas=1, min_insync_replicas="1") as trial:
            await trial.send(COUNT)
            rot_header(trial.leader, offset, bit)
            seams = trial.world.seams("consumer")
            values = [*trial.acked.values()]
            async with Consumer(
                trial.cluster.address, auto_offset_reset="earliest", seams=seams
            ) as consumer:
                await consumer.assign_topics(TOPIC)
                found = await read(consumer, COUNT)
                if found == values and bit == "epoch":
                    return
                assert found == values[:offset]
                assert consumer.position(NAME) == offset
                consumer.seek(NAME, offset)
                with pytest.raises(CorruptRecords):
                    await consumer.poll(5.0)
                assert f"t-0 has bad bytes at offset {offset}" in caplog.text
                consumer.seek(NAME, offset + 1)
                assert await read(consumer, COUNT - offset - 1) == values[offset + 1 :]

    play(scenario)


async def read(consumer: Consumer, count: int) -> list[bytes]:
    """So many records, or those before an error."""
    values: list[bytes] = []
    told = ""
    with trio.fail_after(20):
        try:
            while len(values) < count:
                values += [bytes(record.value or b"") for record in await consumer.poll(1.0)]
        except CorruptRecords as error:
            told = str(error)
    if len(values) < count:
        assert f"t-0 at offset {consumer.position(NAME)}" in told
        assert "seek behind them" in told
    return values

"""The task that tells a broker, at the moment at which its registration is replaced."""

from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count, pairwise

import trio
import trio.testing

from minibroker.broker.controller.channels import Channel
from tests.unit.controller.electing import difference
from tests.unit.controller.test_pushes import answer_of, pushes_of, state_of, topic_of


class NotingChannel(Channel):
    """Tells a broker that notes what it gets, and answers after a while."""

    def __init__(self, pushes, state, told):
        super().__init__(None, pushes, count(1), lambda: state, lambda registration, done: None)
        self.told = told

    @asynccontextmanager
    async def open(self):
        async def send(push):
            await trio.sleep(1)
            self.told.append(push)
            return answer_of(push)

        yield send


async def test_a_channel_that_is_woken_and_cancelled_at_once_sends_nothing(autojump_clock):
    """Both in one turn of the loop: its task runs on from the wait, though it is cancelled. The
    next channel of the same process continues with what there is to send."""
    before, after = state_of(topic_of("t", 1)), state_of(topic_of("t", 1, epoch=1))
    pushes, told = pushes_of(), []
    async with trio.open_nursery() as nursery:
        first = NotingChannel(pushes, before, told)
        nursery.start_soon(first.run)
        await trio.sleep(10)
        assert not pushes.has_more
        pushes.add(difference(before, after))
        first.wake()
        first.scope.cancel()
        pushes.renew(replace(pushes.broker, epoch=99))
        told.clear()
        second = NotingChannel(pushes, after, told)
        nursery.start_soon(second.run)
        await trio.sleep(10)
        assert not pushes.has_more
        assert {push.request.broker_epoch for push in told} == {99}
        nursery.cancel_scope.cancel()


async def test_each_order_has_a_higher_number_than_the_one_before(autojump_clock):
    """Also one that is sent again: the first one may still arrive."""
    state, told = state_of(topic_of("t", 200)), []
    async with trio.open_nursery() as nursery:
        channel = NotingChannel(pushes_of(), state, told)
        nursery.start_soon(channel.run)
        await trio.sleep(100)
        nursery.cancel_scope.cancel()
    assert len(told) > 2
    assert all(a.request.number < b.request.number for a, b in pairwise(told))

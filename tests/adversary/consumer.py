"""A member of the group in the adversarial run, through the blocking consumer or asyncio's.

    python -m tests.adversary.consumer JOURNAL BOOTSTRAP TOPIC NAME SEED --group GROUP

It handles every record that it is given, in order, and writes it down before anything can commit
it. An interrupt hits polls, commits and the handling; what was returned and not handled yet is
handled after it. It asks for more only once it has handled everything, so a program like this loses
nothing, if the client does not. Where another thread or task closes its client, it may fail with
records that it has not handled: another member is given these.

    begin LIFE COMMIT WAY END ID    assigned|revoked|lost PARTITION...
    record PARTITION OFFSET VALUE   it is handled
    commit N PARTITION=OFFSET...    is asked for, at least up to these offsets
    committed|refused|unknown N     what came of it
    closing|closed main|other ...   end LIFE HOW
"""

import itertools
import sys
import time
from collections import deque
from contextlib import suppress
from typing import Any

from minibroker.client import ClientClosed, ClientError, ClientTimeout, CommitFailed, ConsumerRecord
from minibroker.client import TopicPartition as Partition
from tests.adversary.faces import INTERRUPTIONS, OutOfTime
from tests.adversary.worker import Closer, Worker, parse

SESSION_MS = 3_000
CALL_S_MAX = 60.0
COMMITS = ("positions", "offsets", "auto")
WAYS = ("poll", "poll", "iterate")
# How a life may end; those of an iteration end by themselves only when a record comes.
ENDS = ("block", "close", "other", "other", "interrupt", "exit")
# Where the main thread is when another one closes its consumer.
PLACES = ("", "work", "commit", "committed")
EXIT_CODE = 7
ERRORS_MAX = 100  # that a life goes on after


class GaveUp(Exception):
    """The program fails, with records that it has not handled."""


class Member(Worker):
    """The program."""

    def __init__(self, group: str, is_static: bool, *given) -> None:
        super().__init__(*given)
        self.group = group
        self.is_static = is_static
        self.commit_numbers = itertools.count()
        self.pending: deque[ConsumerRecord] = deque()
        self.ends: dict[int, int] = {}  # of partitions handled and not committed
        self.records: Any = None  # of an iteration
        self.consumer: Any
        self.is_subscribed = self.is_leaving = self.has_closed = False
        self.commit_by = ""
        self.way = ""
        self.gives_up = False
        self.handled = 0

    async def live(self) -> None:
        """Be a member once."""
        rng = self.rng
        self.pending.clear()
        self.ends.clear()
        self.records = None
        self.is_subscribed = self.is_leaving = self.has_closed = False
        self.commit_by, self.way, self.end = rng.choice(COMMITS), rng.choice(WAYS), rng.choice(ENDS)
        self.gives_up = rng.random() < 0.5
        if self.has_peace:
            self.way, self.end = "poll", "block"
        self.until = time.monotonic() + self.life_s * rng.uniform(0.3, 1.7)
        # `close` commits for auto commit only if it knows the task that polls.
        self.face.may_wait_for = self.commit_by != "auto"
        options = self.options()
        self.log("begin", self.life, self.commit_by, self.way, self.end, options["client_id"])
        seconds = self.until - time.monotonic()
        seconds *= 1 if self.end == "other" else 10
        closer = self.closer = Closer(self, seconds, self.close_s(), rng.choice(PLACES))
        how = self.end
        self.allow_interrupts()
        self.watchdog.begin("enter", CALL_S_MAX)
        try:
            consumer = self.face.clients.Consumer(self.bootstrap, **options)
            async with self.face.wrap(consumer) as self.consumer:
                closer.close = self.consumer.close
                if self.end == "other" or self.way == "iterate":
                    closer.start()
                try:
                    how = await self.belong(closer)
                except ClientClosed as error:
                    if not closer.has_begun and not self.has_closed:
                        self.log("error", "body", type(error).__name__, error)
                    how = "other"
                if closer.has_begun and rng.random() < 0.7:
                    await closer.wait()
                closer.cancel()
                closer.is_raced = True
                self.log("leaving", how)
                self.watchdog.begin("leave", CALL_S_MAX)
        except INTERRUPTIONS:
            how = "interrupted"
        except SystemExit:
            how = "exit"
            if rng.random() < 0.3 and not self.has_peace:
                self.log("end", self.life, how)
                raise
        except GaveUp:
            how = "failed"
        except Exception as error:
            self.log("error", "life", type(error).__name__, error)
            how = "error"
        self.interrupts.is_on = False
        self.watchdog.end()
        self.log("end", self.life, how)

    def options(self) -> dict[str, object]:
        """Choose those of a life."""
        rng = self.rng
        name = f"{self.name}.{self.life}"
        options: dict[str, object] = {
            "client_id": name,
            "group_id": self.group,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": self.commit_by == "auto",
            "auto_commit_interval_ms": rng.choice((100, 1_000, 5_000)),
            "session_timeout_ms": SESSION_MS,
            "heartbeat_interval_ms": 500,
            "max_poll_interval_ms": 20_000,
            "max_poll_records": rng.choice((20, 100, 500)),
            "fetch_max_wait_ms": rng.choice((50, 500)),
            "request_timeout_ms": 10_000,
            "default_api_timeout_ms": 20_000,
        }
        if self.is_static:
            options["group_instance_id"] = self.name.split("-")[0]
        return options

    def close_s(self) -> float:
        """How long a close may take."""
        return self.rng.choice((0.0, 0.1, 1.0, 10.0))

    async def belong(self, closer: Closer) -> str:
        """Work until the life is over. Returns how it ended."""
        errors = 0
        while True:
            self.watchdog.begin(f"step of {self.way}", CALL_S_MAX)
            if self.way == "iterate":  # it waits for a record as long as it takes
                self.watchdog.end()
            try:
                if self.pending:
                    await self.handle()
                elif self.is_over(closer):
                    return await self.finish()
                else:
                    await self.step()
            except INTERRUPTIONS:
                if self.is_interrupt_last:
                    raise
                self.face.go_on()
            except ClientClosed:
                raise
            except ClientError as error:
                self.log("error", "body", type(error).__name__, error)
                errors += 1
                if errors == ERRORS_MAX:
                    raise

    def is_over(self, closer: Closer) -> bool:
        """Whether this life shall end now, and the main thread ends it."""
        if closer.has_begun:
            return False  # the next call raises ClientClosed
        if self.has_peace:
            return self.is_stopped or self.way == "iterate"
        late_s = time.monotonic() - self.until
        return late_s > (5.0 if self.end == "interrupt" else 0.0) and self.end != "other"

    async def handle(self) -> None:
        """Handle what was returned, record by record."""
        if self.closer.reach("work"):
            await self.work(self.rng.uniform(0, 0.02))
        while self.pending:
            record = self.pending[0]
            self.handled += 1
            if not self.handled % 64:
                await self.work(self.rng.uniform(0, 0.02))
            if self.closer.has_begun and self.gives_up:
                raise GaveUp
            # From here on no interrupt: the record is handled as a whole or not at all.
            self.pending.popleft()
            self.log("record", record.partition, record.offset, (record.value or b"").decode())
            self.ends[record.partition] = record.offset + 1

    async def step(self) -> None:
        """Subscribe, commit, leave and come back, or ask for records."""
        if not self.is_subscribed:
            await self.consumer.subscribe(
                self.topic,
                on_assigned=self.on_assigned,
                on_revoked=self.on_revoked,
                on_lost=self.on_lost,
            )
            self.is_subscribed = True
        chance = self.rng.random()
        if self.ends and chance < 0.7:
            await self.commit()
        if self.is_leaving or (chance > 0.995 and not self.has_peace):
            await self.leave()
        elif self.way == "poll":
            self.pending.extend(await self.consumer.poll(self.rng.choice((0, 0.05, 0.3))))
        else:
            await self.iterate()

    async def leave(self) -> None:
        """Leave the group, to come back in the next step. An interrupted try is repeated."""
        await self.commit()
        if not self.is_leaving:
            self.log("unsubscribe")
        self.is_leaving = True
        try:
            await self.consumer.unsubscribe()
        except INTERRUPTIONS:
            self.log("unknown", "unsubscribe", "interrupted")
            raise
        self.is_leaving = self.is_subscribed = False

    async def iterate(self) -> None:
        """Take some records, one by one."""
        for _ in range(self.rng.randint(1, 200)):
            if self.records is None:
                self.records = aiter(self.consumer)
            try:
                self.pending.append(await anext(self.records))
            except BaseException:
                self.records = None  # a generator that raised has ended
                raise
            await self.handle()

    async def finish(self) -> str:
        """End the life as was chosen, with everything handled."""
        await self.commit()
        if self.ends and self.commit_by != "auto":
            return "uncommitted"
        if self.end == "exit" and not self.has_peace:
            self.log("exiting", EXIT_CODE)
            sys.exit(EXIT_CODE)
        if self.end == "close":
            timeout_s = self.close_s()
            self.log("closing", "main", timeout_s)
            self.watchdog.begin(f"close({timeout_s})", timeout_s + 30)
            begin = time.monotonic()
            self.has_closed = True  # though an interrupt may end the waiting
            try:
                await self.consumer.close(timeout_s)
            except INTERRUPTIONS:
                self.log("unknown", "close", "interrupted")
                raise
            self.log("closed", "main", f"{time.monotonic() - begin:.3f}")
        return "close" if self.end == "close" else "block"

    async def commit(self) -> None:
        """Commit what is handled, unless the client does that by itself."""
        is_repeated = self.commit_by == "positions" and self.rng.random() < 0.3
        if self.commit_by == "auto" or not (self.ends or is_repeated):
            return
        number = next(self.commit_numbers)
        ends = dict(self.ends)
        self.log("commit", number, *(f"{place}={end}" for place, end in ends.items()))
        self.closer.reach("commit")
        try:
            if self.commit_by == "positions":
                await self.consumer.commit()
            else:
                offsets = {Partition(self.topic, place): end for place, end in ends.items()}
                await self.consumer.commit(offsets)
        except CommitFailed as error:
            self.log("refused", number, error)
            self.forget(ends)
        except ClientClosed as error:
            self.log("refused", number, error)
            raise
        except ClientTimeout as error:
            self.log("unknown", number, error)
        except INTERRUPTIONS:
            self.log("unknown", number, "interrupted")
            raise
        else:
            self.log("committed", number)
            self.closer.reach("committed")
            self.forget(ends)

    def forget(self, ends: dict[int, int]) -> None:
        """These need no commit any more, or may not be committed by this member."""
        for place, end in ends.items():
            if self.ends.get(place) == end:
                del self.ends[place]

    async def on_assigned(self, partitions: list[Partition]) -> None:
        """Write it down."""
        self.log("assigned", *(each.partition for each in partitions))

    async def on_revoked(self, partitions: list[Partition]) -> None:
        """Commit before the next owner begins. After that it is too late."""
        self.log("revoked", *(each.partition for each in partitions))
        with suppress(ClientClosed, OutOfTime):  # it is written down
            await self.commit()
        for each in partitions:
            self.ends.pop(each.partition, None)

    async def on_lost(self, partitions: list[Partition]) -> None:
        """Commit nothing."""
        self.log("lost", *(each.partition for each in partitions))
        self.ends.clear()


def main() -> None:
    """Run the program."""
    given = parse()
    Member(given.group, given.name.startswith("static"), given).run()


if __name__ == "__main__":
    main()

"""A producer in the adversarial run: blocking or for asyncio, idempotent, acks=all.

    python -m tests.adversary.producer JOURNAL BOOTSTRAP TOPIC NAME SEED

Values are `NAME:LIFE:SEQ:PADDING`; sequences begin at 0 in each life and rise by 1.

    begin LIFE END               sent FIRST END    `send` was called for FIRST <= SEQ < END
    unknown SEQ                  it may have been taken: an interrupt hit its `send` or `send_many`,
                                 or a close its `send_many` or `send_and_wait`
    refused SEQ WHY              its `send` raised: it was not taken
    delivered PARTITION BASE SEQ...     failed PARTITION ERROR SEQ...
    closing|closed main|other [DELIVERED FAILED UNDELIVERED]      leaving HOW      end LIFE HOW
"""

import sys
import time
from collections.abc import Sequence
from typing import Any

from minibroker.client import ClientClosed, ClientError, CloseReport, Delivery
from tests.adversary.faces import INTERRUPTIONS
from tests.adversary.worker import Closer, Worker, parse

ERRORS_MAX = 100  # that a life goes on after
ENDS = ("block", "close", "soon", "other", "other", "interrupt", "exit")
# Where the main thread is when another one closes its producer.
PLACES = ("", "send", "flush")
EXIT_CODE = 7
CALL_S_MAX = 90.0
KEYS = 16


class Sender(Worker):
    """The program."""

    def __init__(self, *given) -> None:
        super().__init__(*given)
        self.seq = 0
        self.due = 0.0  # when the next records are
        self.producer: Any

    async def live(self) -> None:
        """Send with one producer."""
        rng = self.rng
        self.seq = 0
        self.end = "block" if self.has_peace else rng.choice(ENDS)
        self.until = time.monotonic() + self.life_s * rng.uniform(0.3, 1.7)
        self.log("begin", self.life, self.end)
        seconds = self.until - time.monotonic()
        timeout_s = rng.choice((0.0, 0.05, 0.5, 30.0))
        closer = self.closer = Closer(self, seconds, timeout_s, rng.choice(PLACES))
        how = self.end
        self.allow_interrupts()
        self.watchdog.begin("enter", CALL_S_MAX)
        try:
            producer = self.face.clients.Producer(self.bootstrap, **self.options())
            async with self.face.wrap(producer) as self.producer:
                closer.close = self.close
                if self.end == "other":
                    closer.start()
                try:
                    how = await self.send_all(closer)
                except ClientClosed as error:
                    if not closer.has_begun:
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
        except Exception as error:
            self.log("error", "life", type(error).__name__, error)
            how = "error"
        self.interrupts.is_on = False
        self.watchdog.end()
        self.log("end", self.life, how)

    def options(self) -> dict[str, object]:
        """Choose those of a life."""
        rng = self.rng
        return {
            "client_id": f"{self.name}.{self.life}",
            "on_delivery": self.on_delivery,
            "linger_ms": rng.choice((0, 5, 50)),
            "batch_size": rng.choice((1_000, 16_384)),
            "buffer_memory": rng.choice((20_000, 33_554_432)),
            # A short one gives up on a broker that is only paused: the records come twice to it.
            "request_timeout_ms": rng.choice((600, 10_000)),
            "delivery_timeout_ms": 80_000,
        }

    def on_delivery(self, delivery: Delivery) -> None:
        """Write down what became of a batch."""
        seqs = [(record.value or b"").split(b":")[2].decode() for record in delivery.records()]
        if delivery.error is None:
            self.log("delivered", delivery.partition, delivery.base_offset, *seqs)
        else:
            self.log("failed", delivery.partition, type(delivery.error).__name__, *seqs)

    async def send_all(self, closer: Closer) -> str:
        """Send until the life is over. Returns how it ended."""
        errors = 0
        while True:
            self.watchdog.begin("step", CALL_S_MAX)
            try:
                if closer.has_begun:
                    if self.rng.random() < 0.05:
                        return "other"
                    await self.burst("send")  # until it is refused
                elif self.is_over():
                    return await self.finish()
                elif self.due > time.monotonic():
                    await self.work(min(0.1, self.due - time.monotonic()))
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

    def is_over(self) -> bool:
        """Whether this life shall end now, and the main thread ends it."""
        if self.has_peace:
            return True
        late_s = time.monotonic() - self.until
        return late_s > (5.0 if self.end == "interrupt" else 0.0) and self.end != "other"

    async def step(self) -> None:
        """Send some records."""
        count = await self.burst("send")
        chance = self.rng.random()
        if chance < 0.05:
            self.closer.reach("flush")
            await self.producer.flush()
        elif chance < 0.1:
            await self.burst("send_and_wait", (1,))
        elif chance < 0.15:
            count += await self.send_many()
        # However often the rest is interrupted, the rate stays; what an outage held up is not sent
        # all at once.
        self.due = max(self.due, time.monotonic() - 1.0) + count / self.rate

    async def burst(self, name: str, counts: Sequence[int] = (1, 10, 50, 300)) -> int:
        """Send some records with this method. Returns how many."""
        count = self.rng.choice(counts)
        first = self.seq
        try:
            for _ in range(count):
                await self.send(name)
        finally:
            if self.seq > first:
                self.log("sent", first, self.seq)
        return count

    async def send(self, name: str) -> None:
        """Send one record with this method."""
        seq = self.seq
        value, key = self.next_value(), self.a_key()
        self.closer.reach("send")
        try:
            await getattr(self.producer, name)(self.topic, value, key)
        except INTERRUPTIONS:
            self.log("unknown", seq)
            raise
        except ClientClosed as error:
            # A record that was to be waited for may have been taken before the close.
            is_taken = name == "send_and_wait"
            self.log(*(("unknown", seq) if is_taken else ("refused", seq, error)))
            raise

    async def send_many(self) -> int:
        """Send some records with one call. Returns how many."""
        first = self.seq
        values = [self.next_value() for _ in range(self.rng.choice((1, 10, 700)))]
        self.closer.reach("send")
        try:
            await self.producer.send_many(self.topic, values, self.a_key())
        except (*INTERRUPTIONS, ClientClosed):
            for seq in range(first, self.seq):
                self.log("unknown", seq)
            raise
        finally:
            self.log("sent", first, self.seq)
        return len(values)

    def next_value(self) -> bytes:
        """The value of the next record."""
        padding = "x" * self.rng.choice((0, 10, 200))
        value = f"{self.name}:{self.life}:{self.seq}:{padding}".encode()
        self.seq += 1
        return value

    def a_key(self) -> bytes:
        """One of the keys."""
        return b"key-%d" % self.rng.randrange(KEYS)

    async def finish(self) -> str:
        """End the life as was chosen."""
        if self.end == "exit" and not self.has_peace:
            self.log("exiting", EXIT_CODE)
            sys.exit(EXIT_CODE)
        if self.end in ("close", "soon"):
            timeout_s = None if self.end == "close" else self.rng.choice((0.0, 0.02, 0.3))
            self.log("closing", "main", timeout_s)
            self.watchdog.begin(f"close({timeout_s})", (timeout_s or CALL_S_MAX) + 30)
            self.log("closed", "main", await self.close(timeout_s))
            return "close"
        return "block"

    async def close(self, timeout_s: float | None) -> str:
        """Close the producer. Returns the report, as it is written down."""
        return report_of(await self.producer.close(timeout_s))


def report_of(report: CloseReport) -> str:
    """A close's report, as it is written down."""
    return f"{report.delivered} {report.failed} {report.undelivered}"


def main() -> None:
    """Run the program."""
    Sender(parse()).run()


if __name__ == "__main__":
    main()

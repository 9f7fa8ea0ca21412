"""`minibroker cluster roll`: stop and start each broker while the others serve.

Only one broker is down at a time. The next one is stopped only once every broker of the cluster
reports that it is ready (DESCRIBE_BROKER: the same answer as in `minibroker health --ready`): then
every replica is in sync again, and the other brokers have everything that the next one holds. The
controller comes last, so that it changes once and not once for each broker. At the end the
preferred leaders are elected: a restarted broker leads nothing until then.

The roll forces nothing: if the cluster is not in the required state, it does not begin, or it ends,
and says what to do and how to roll the rest. It starts every broker that it has stopped, whatever
happened meanwhile; only a second signal, or `kill -9`, ends it between the two. It holds
`layout.exclusive` all the time, so no second roll and no `start` runs in between.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Final

import typer

from minibroker.cli.cluster.layout import (
    DEFAULT_DIRECTORY,
    HOST,
    DataDir,
    Layout,
    check_store,
    exclusive,
    layout_for,
)
from minibroker.cli.cluster.process import Broker, State, wait_for
from minibroker.cli.cluster.up import StopSignals, refuse_paused
from minibroker.cli.cluster.up import stop as stop_brokers
from minibroker.cli.settings import Settings, given_settings
from minibroker.cli.terminal import (
    DEFAULT_TIMEOUT_S,
    Failure,
    Interrupted,
    counted,
    note,
    opened_admin,
)

if TYPE_CHECKING:
    from minibroker.protocol.messages.brokers import DescribeBrokerResponse

    Answers = dict[int, DescribeBrokerResponse | str]

BEGIN_S_MAX: Final = 5.0  # for a cluster that was just started
ANSWER_S_MAX: Final = 3.0
ASK_EVERY_S: Final = 0.1
TELL_EVERY_S: Final = 5.0  # how often a note says what the roll waits for
NAMED_MAX: Final = 5  # partitions named in one message
PAUSES: Final = (
    "producers wait meanwhile (delivery.timeout.ms) and lose nothing; to roll nonetheless, add"
    " --allow-pauses"
)


def roll(
    directory: DataDir = DEFAULT_DIRECTORY,
    settings: Settings = None,
    *,
    node_ids: Annotated[
        list[int] | None,
        typer.Option("--broker", metavar="N", help="Only this broker; may be repeated."),
    ] = None,
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout-s",
            metavar="S",
            min=1,
            help="Time limit of each step, in seconds.",
        ),
    ] = 300.0,
    allow_pauses: Annotated[
        bool,
        typer.Option("--allow-pauses", help="Roll even if partitions refuse acks=all meanwhile."),
    ] = False,
) -> None:
    """Restart one broker after another, while the others serve.

    The next one is stopped when all are ready and in sync again, the controller last. In the end
    the preferred leaders are elected. `--set` changes a setting of all brokers, as `cluster up
    --set` does. Ctrl-C ends it once the broker at hand runs again.
    """
    given = given_settings(settings)
    layout = Layout.load(directory)
    check_store(layout)
    with exclusive(layout, may_wait=False), StopSignals(()) as signals:
        # Read it again, now that no other command can start a broker.
        layout = layout_for(directory, None, None, given)
        wanted = layout.checked_node_ids(node_ids or layout.node_ids)
        work = _Roll(layout, signals)
        work.wait_until_ready(BEGIN_S_MAX)
        if not allow_pauses:
            _refuse_pauses(layout, wanted)
        if given:
            layout.save()
        note("Ctrl-C ends it once the broker at hand runs again, a second one at once")
        began = time.monotonic()
        work.run(wanted, timeout_s)
        _elect_leaders(layout)
    print(f"Rolled {counted(len(wanted), 'broker')} in {time.monotonic() - began:.1f} s.")


class _Roll:
    """Restarts the brokers one by one."""

    def __init__(self, layout: Layout, signals: StopSignals) -> None:
        self._layout = layout
        self._brokers = {node_id: Broker(layout, node_id) for node_id in layout.node_ids}
        self._signals = signals
        self._controller = -1
        self._remaining: list[int] = []  # not stopped yet

    def run(self, wanted: Sequence[int], timeout_s: float) -> None:
        """Restart the brokers in turn. Raises `Failure` and `Interrupted`; says how to resume."""
        self._remaining = list(wanted)
        try:
            while self._remaining:
                if self._signals.received:
                    raise Interrupted(self._signals.received)
                broker = self._brokers[next_of(self._remaining, self._controller)]
                self._restart(broker, timeout_s)
        except Failure as failure:
            raise Failure(f"{failure}; {self._how_to_resume}") from None
        except Interrupted:
            note(f"ended by a signal; {self._how_to_resume}")
            raise

    @property
    def _how_to_resume(self) -> str:
        if not self._remaining:
            return "no other is left to be restarted"
        options = [part for node_id in self._remaining for part in ("--broker", node_id)]
        return f"to go on with the rest: {self._layout.command('roll', *options)}"

    def _restart(self, broker: Broker, timeout_s: float) -> None:
        """Stop a broker, start it, and wait until all replicas are in sync again."""
        note(f"stopping {broker}")
        times = [time.monotonic()]
        was_clean = _stop(broker, timeout_s)
        self._remaining.remove(broker.node_id)
        times.append(time.monotonic())
        self._start(broker, timeout_s)
        times.append(time.monotonic())
        self.wait_until_ready(timeout_s)
        times.append(time.monotonic())
        stop_s, start_s, sync_s = (after - before for before, after in pairwise(times))
        print(
            f"Rolled broker {broker.node_id}: stopped in {stop_s:.1f} s, started in {start_s:.1f}"
            f" s, all in sync {sync_s:.1f} s later.",
            flush=True,
        )
        if not was_clean:
            raise Failure(
                f"{broker} did not stop in order (see {broker.log_file}); it runs again and all"
                " are in sync, so nothing is lost"
            )

    def _start(self, broker: Broker, timeout_s: float) -> None:
        """Start a broker and wait until it answers; one that takes too long is left running."""
        others = [other for other in self._brokers.values() if other is not broker]
        if others and all(other.state is State.STOPPED for other in others):
            raise Failure(
                f"all other brokers were stopped meanwhile, so {broker} stays stopped, too; to"
                f" start all: {self._layout.command('up', '--detach')}"
            )
        launch = broker.spawn()
        try:
            has_started = wait_for(launch.is_ready, timeout_s)
        except Failure as failure:
            raise Failure(
                f"{failure}; the others serve. Mend that (settings are in {self._layout.file}),"
                f" then: {self._layout.command('start', broker.node_id)}"
            ) from None
        if not has_started:
            raise Failure(
                f"{broker} has not started within {timeout_s:.0f} s (see {broker.log_file}); it"
                " is left alone, and the others serve"
            )

    def wait_until_ready(self, timeout_s: float) -> None:
        """Wait until every broker reports that it is ready. Raises `Failure`, `Interrupted`."""
        give_up_at = time.monotonic() + timeout_s
        tell_at = time.monotonic() + TELL_EVERY_S
        while True:
            self._refuse_dead()
            answers = _ask_all(self._layout)
            waiting = "; ".join(reasons_to_wait(answers))
            if not waiting:
                self._controller = controller_of(answers)
                return
            if self._signals.received:
                raise Interrupted(self._signals.received)
            now = time.monotonic()
            if now > give_up_at:
                raise Failure(
                    f"the brokers are not ready within {timeout_s:.0f} s: {waiting}; wait for it,"
                    " or see `minibroker replica status`"
                )
            if now > tell_at:
                note(f"waiting: {waiting}")
                tell_at = now + TELL_EVERY_S
            time.sleep(ASK_EVERY_S)

    def _refuse_dead(self) -> None:
        """Raise `Failure` for a dead or paused broker, which does not become ready by waiting."""
        brokers = self._brokers.values()
        refuse_paused(self._layout, brokers)
        if dead := [broker for broker in brokers if not broker.state.is_alive]:
            verb = "does" if len(dead) == 1 else "do"
            start = self._layout.command("start", *(broker.node_id for broker in dead))
            raise Failure(f"{', '.join(map(str, dead))} {verb} not run; to start: {start}")


def _elect_leaders(layout: Layout) -> None:
    """Elect the preferred leaders; the roll is done even if that fails."""
    from minibroker.client.errors import ClientError
    from minibroker.protocol.errors import BrokerError

    try:
        with opened_admin(layout.bootstrap, DEFAULT_TIMEOUT_S) as admin:
            report = admin.elect_leaders()
    except (BrokerError, ClientError) as error:
        note(f"the preferred leaders were not elected ({error}); try: minibroker leader elect")
        return
    note(f"elected the preferred leader of {counted(len(report.elected), 'partition')}")
    for name, reason in list(report.failed.items())[:NAMED_MAX]:
        note(f"{name}: {reason}")


def _stop(broker: Broker, timeout_s: float) -> bool:
    """Return whether a broker stopped in order. Raises `Failure` if it still runs."""
    try:
        stop_brokers([broker], timeout_s)
    except Failure:
        if broker.state.is_alive:
            raise
        return False
    return True


def next_of(remaining: Sequence[int], controller: int) -> int:
    """Return the broker to restart next: the controller only if no other is left."""
    return next((node_id for node_id in remaining if node_id != controller), remaining[0])


def controller_of(answers: "Answers") -> int:
    """Return the controller's id by the answer with the newest registration; -1 if unknown."""
    answered = [answer for answer in answers.values() if not isinstance(answer, str)]
    return max(answered, key=lambda answer: answer.broker_epoch).controller_id if answered else -1


def reasons_to_wait(answers: "Answers") -> Iterator[str]:
    """Yield why no broker may be stopped now: a text for each that is not ready."""
    for node_id, answer in answers.items():
        if isinstance(answer, str):
            yield f"broker {node_id}: {answer}"
        elif not answer.is_ready:
            yield f"broker {node_id}: {', '.join(answer.reasons)}"


def _ask_all(layout: Layout) -> "Answers":
    """Return each broker's answer about itself, or why it gives none."""
    from minibroker.cli.broker.probe import ProbeFailed, describe
    from minibroker.protocol.types import Endpoint

    answers: Answers = {}
    for node_id in layout.node_ids:
        try:
            answers[node_id] = describe(Endpoint(HOST, layout.port(node_id)), ANSWER_S_MAX)
        except ProbeFailed as failure:
            answers[node_id] = str(failure)
    return answers


def _refuse_pauses(layout: Layout, wanted: Sequence[int]) -> None:
    """Raise `Failure` if a partition would refuse acks=all while one of its brokers is down."""
    from minibroker.broker.findings.partitions import needed_in_sync

    if layout.broker_count == 1:
        raise Failure(f"a cluster of one broker answers nobody while it restarts; {PAUSES}")
    with opened_admin(layout.bootstrap, DEFAULT_TIMEOUT_S) as admin:
        names = admin.list_topics()
        topics = admin.describe_topics(*names)
        configs = admin.describe_configs(*names)
    found = []
    for topic in topics:
        given = {config.name: config.value for config in configs[topic.name]}
        found += [
            f"{topic.name}-{partition.partition}"
            for partition in topic.partitions
            if set(partition.replicas) & set(wanted)
            if len(partition.isr) <= needed_in_sync(len(partition.replicas), given)
        ]
    if found:
        shown = ", ".join(found[:NAMED_MAX]) + (", ..." if len(found) > NAMED_MAX else "")
        raise Failure(
            "while one of its brokers restarts, too few replicas are left for acks=all of"
            f" {counted(len(found), 'partition')}: {shown}; {PAUSES}"
        )

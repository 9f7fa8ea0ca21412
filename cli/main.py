"""The entry point of the `minibroker` script."""

import sys

# Commands that run brokers on this machine; all others only connect to brokers.
BROKERS_HERE = (["start"], ["cluster", "up"], ["cluster", "start"], ["cluster", "roll"])


INTERRUPTED = 130  # what shells expect of a command that Ctrl-C has ended


def main() -> None:
    """Run the command that the process was started with. Ctrl-C ends it without a traceback, also
    while it still imports; commands that have something to end handle it themselves."""
    try:
        _main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _main(arguments: list[str]) -> None:
    # This comes first: the imports below take a large part of a second on a small machine.
    if arguments[:1] == ["start"]:
        _end_at_signal()
    # Containers call this every other second: `probe.py` says why it bypasses the parser.
    match arguments:
        case ["health"] | ["health", "--ready"]:
            _probe(None, must_be_ready="--ready" in arguments)
        case ["health", "-b", address] | ["health", "--ready", "-b", address]:
            _probe(address, must_be_ready="--ready" in arguments)
        case _:
            _run(arguments)


def _probe(address: str | None, *, must_be_ready: bool) -> None:
    from minibroker.cli.broker.probe import plain_main

    plain_main(address, must_be_ready=must_be_ready)


def _end_at_signal() -> None:
    """Exit with code 0 at a signal: a broker that is not started yet has stopped in order."""
    import os
    import signal

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(0))


def _run(arguments: list[str]) -> None:
    import logging

    from minibroker.cli.commands import run
    from minibroker.cli.kafka_form import meant_command
    from minibroker.cli.terminal import USAGE, Failure, failures_as_one_line

    # The client's warnings (`start` sets another format for the broker's lines).
    logging.basicConfig(level=logging.WARNING, format="%% %(message)s")
    with failures_as_one_line():
        if sys.platform == "win32" and any(arguments[: len(one)] == one for one in BROKERS_HERE):
            raise Failure(
                "a broker needs Linux or macOS: on Windows, run it in WSL (Windows Subsystem for"
                " Linux); clients work here and can connect to it"
            )
        if command := meant_command(arguments):
            raise Failure(f"the form of Kafka's tool; here it is: {command}", USAGE)
        run(arguments)

"""What the `minibroker` script runs."""

import sys
from typing import Final

# What containers run every other second: `probe.py` says why it takes a way of its own.
PLAIN: Final = (["health"], ["health", "--ready"])


def main() -> None:
    """Run the command that the process was started with."""
    arguments = sys.argv[1:]
    if arguments in PLAIN:
        from minibroker.cli.probe import plain_main

        plain_main(arguments)
        return

    import logging

    from minibroker.cli.commands import app_for
    from minibroker.cli.terminal import failures_as_one_line

    # What a client has to say on the way (`start` gives the broker's lines a form of their own).
    logging.basicConfig(level=logging.WARNING, format="%% %(message)s")
    with failures_as_one_line():
        app_for(arguments)()

"""What the `minibroker` script runs."""

import sys


def main() -> None:
    """Run the command that the process was started with."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["health"]:
        from minibroker.cli.probe import plain_main

        if plain_main(arguments[1:]):
            return

    import logging

    from minibroker.cli.commands import app_for
    from minibroker.cli.terminal import failures_as_one_line

    # What a client has to say on the way (`start` gives the broker's lines a form of their own).
    logging.basicConfig(level=logging.WARNING, format="%% %(message)s")
    with failures_as_one_line():
        app_for(arguments)()

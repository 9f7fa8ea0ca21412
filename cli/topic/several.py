"""One request for each of several topics: what one of them refuses does not stop the others."""

from collections.abc import Callable, Sequence

import typer

from minibroker.cli.terminal import FAILED, note


def for_each(names: Sequence[str], act: Callable[[str], None]) -> None:
    """Call `act` with each name. What brokers refuse is printed; then the exit code is 1."""
    from minibroker.protocol.errors import BrokerError

    refused = 0
    for name in names:
        try:
            act(name)
        except BrokerError as error:
            if len(names) == 1:
                raise
            refused += 1
            note(f"ERROR: {error}")
    if refused:
        raise typer.Exit(FAILED)

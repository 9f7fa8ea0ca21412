"""`minibroker health`: whether a broker answers, and with `--ready` whether it is ready.

`probe.py` does the work. The broker itself decides whether it is ready, and says why not
(`broker/observe/readiness.py`).
"""

from typing import Annotated

import typer

from minibroker.cli import DEFAULT_BOOTSTRAP
from minibroker.cli.terminal import (
    Bootstrap,
    Format,
    OutputFormat,
    TimeoutS,
)

TIMEOUT_S = 2.0


def health(
    *,
    must_be_ready: Annotated[
        bool, typer.Option("--ready", help="Exit code 1 also if it is not ready.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutS = TIMEOUT_S,
    output: Format = OutputFormat.TEXT,
) -> None:
    """Ask one broker for its health.

    Exit code 0 if it answers (with --ready: if it is ready), else 1. A broker is ready once it is
    registered, knows the cluster, and every replica on it is in sync.
    """
    from minibroker.cli.broker.probe import ask_health

    as_json = output is OutputFormat.JSON
    print(
        ask_health(bootstrap, timeout_s, must_be_ready=must_be_ready, as_json=as_json), flush=True
    )

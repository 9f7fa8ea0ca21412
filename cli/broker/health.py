"""`minibroker health`: whether brokers answer, and with `--ready` whether they are ready.

`probe.py` does the work. A broker itself decides whether it is ready, and says why not
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
        bool, typer.Option("--ready", help="Exit code 1 also if one is not ready.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutS = TIMEOUT_S,
    output: Format = OutputFormat.TEXT,
) -> None:
    """Ask each named broker for its health.

    Exit code 0 if all of them answer (with --ready: if all are ready), else 1. A broker is ready
    once it is registered, knows the cluster, and every replica on it is in sync.
    """
    from minibroker.cli.broker.probe import ask_health

    as_json = output is OutputFormat.JSON
    for line in ask_health(bootstrap, timeout_s, must_be_ready=must_be_ready, as_json=as_json):
        print(line, flush=True)

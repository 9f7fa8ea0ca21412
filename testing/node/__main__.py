"""`python -m minibroker.testing.node`: run one broker that a test can break.

The arguments are properties, as `minibroker start --set` takes them. The environment has the port
for orders, their token, and the faults to start with. The command refuses a data directory that
the testing kit has not made.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path

from minibroker.testing.node.faults import NodeFaults
from minibroker.testing.node.settings import FAULTS, MARKER_FILE, PORT, TOKEN


def main() -> None:
    """Run the broker until a signal ends it."""
    from minibroker.cli.broker.start import run_broker
    from minibroker.cli.settings import given_settings, load_settings
    from minibroker.cli.terminal import failures_as_one_line
    from minibroker.testing.node.faulty_system import with_faults

    try:
        port, token = int(os.environ.get(PORT, "")), os.environ[TOKEN]
        faults = NodeFaults.from_json(json.loads(os.environ.get(FAULTS, "{}")))
    except (KeyError, ValueError) as error:
        sys.exit(
            "the testing kit starts this command; docs/testing-orders.md says how to do it"
            f" without the kit. {PORT}, {TOKEN} or {FAULTS} is missing or wrong: {error}"
        )
    with failures_as_one_line():
        config = load_settings(None, given_settings(sys.argv[1:])).config
        if not (Path(config.data_dir) / MARKER_FILE).exists():
            sys.exit(
                f"{config.data_dir} has no file {MARKER_FILE}, so a test did not make it: a broker"
                " with faults does not run there; use minibroker start"
            )
        run_broker(
            config, partial(with_faults, config=config, port=port, token=token, faults=faults)
        )


if __name__ == "__main__":
    main()

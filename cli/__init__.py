"""The command line. The default of `--bootstrap-server` is defined here, so that `health` can read
it without importing a command-line library.
"""

from typing import Final

BOOTSTRAP_VARIABLE: Final = "MINIBROKER_BOOTSTRAP"
DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"

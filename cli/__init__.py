"""The command line. Where a command looks for a broker that it was not told of stands here, so that
`health` can read it without a library for command lines.
"""

from typing import Final

BOOTSTRAP_VARIABLE: Final = "MINIBROKER_BOOTSTRAP"
DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"

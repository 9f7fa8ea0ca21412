"""Where a command looks for a broker that it was not told of. No command line is needed to know."""

from typing import Final

VARIABLE: Final = "MINIBROKER_BOOTSTRAP"
DEFAULT: Final = "127.0.0.1:9092"

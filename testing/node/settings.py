"""The environment variables of a broker with faults, and the file that marks its directory."""

from typing import Final

MARKER_FILE: Final = ".minibroker-testing"  # in the data directory
PORT: Final = "MINIBROKER_TESTING_PORT"
TOKEN: Final = "MINIBROKER_TESTING_TOKEN"
FAULTS: Final = "MINIBROKER_TESTING_FAULTS"

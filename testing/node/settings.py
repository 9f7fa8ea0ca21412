"""What a broker with faults is told besides its properties, and where it may run."""

from typing import Final

MARK: Final = ".minibroker-testing"  # a file in the data directory
PORT: Final = "MINIBROKER_TESTING_PORT"
TOKEN: Final = "MINIBROKER_TESTING_TOKEN"
FAULTS: Final = "MINIBROKER_TESTING_FAULTS"

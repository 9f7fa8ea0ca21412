"""What `start` makes of its settings before there is a broker."""

import pytest

from minibroker.broker.config import Config
from minibroker.cli.start import limited


@pytest.mark.parametrize(
    ("wanted", "files_max", "connections"),
    [(2**31 - 1, 65_536, 32_768), (100, 65_536, 100), (2**31 - 1, 256, 128), (9, 1, 1)],
)
def test_connections_leave_files_to_the_logs(wanted: int, files_max: int, connections: int) -> None:
    """However many connections are allowed, half of the descriptors stay for segments."""
    config = limited(Config(max_connections=wanted), files_max)
    assert config.max_connections == connections

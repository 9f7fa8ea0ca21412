"""`minibroker health` against a broker that runs, stands still, and is dead."""

import platform
import shutil
from pathlib import Path

from minibroker import __version__
from minibroker.cli.broker.probe import describe
from minibroker.client.net.servers import parse_servers
from tests.support.processes import run_cli, running_broker


def test_health_tells_how_a_broker_is(tmp_path: Path) -> None:
    """Exit code 0 while it serves, 1 as soon as it does not; and what it tells of disk, files and
    versions is true."""
    with running_broker(tmp_path / "data") as broker:
        ask = ("health", "--ready", "-b", broker.address, "--timeout-s")
        well = run_cli(*ask, "20")
        assert (well.returncode, well.stdout) == (0, "broker 1 is ready\n")
        broker.pause()
        still = run_cli(*ask, "0.1")
        assert (still.returncode, still.stdout) == (1, "")
        assert still.stderr == f"% ERROR: {broker.address} gives no answer within 0.1 s\n"
        broker.resume()
        (endpoint,) = parse_servers(broker.address)
        told = describe(endpoint, 20.0, include_machine=True).machine
    dead = run_cli(*ask, "20")
    assert (dead.returncode, dead.stdout) == (1, "")
    assert dead.stderr == f"% ERROR: {broker.address} cannot be asked: Connection refused\n"

    assert told is not None
    assert told.software_version == __version__
    assert told.python_version == platform.python_version()
    assert told.data_directory == str(tmp_path / "data")
    assert told.store == f"sqlite:{tmp_path / 'data' / 'metadata.db'}"
    disk = shutil.disk_usage(tmp_path)
    assert told.disk_total_bytes == disk.total
    assert abs(told.disk_free_bytes - disk.free) < disk.total // 4
    assert 5 < told.open_files < told.open_files_max

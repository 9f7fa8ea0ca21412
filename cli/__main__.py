"""Makes `python -m minibroker.cli` the command `minibroker`."""

from minibroker.cli.main import main

main()

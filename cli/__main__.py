"""`python -m minibroker.cli` is the command `minibroker`."""

from minibroker.cli.main import main

main()

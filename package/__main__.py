"""`python -m minibroker` is the command `minibroker`."""

from minibroker.cli.main import main

main()

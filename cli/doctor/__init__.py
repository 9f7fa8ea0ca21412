"""The `doctor` command, which looks for problems."""

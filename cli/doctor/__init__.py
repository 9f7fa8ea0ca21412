"""The command that looks for what is wrong."""

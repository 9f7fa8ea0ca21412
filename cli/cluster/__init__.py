"""Commands about the brokers of this machine, one process each."""

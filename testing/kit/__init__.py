"""The parts of a cluster in a test; programs import them from `minibroker.testing`."""

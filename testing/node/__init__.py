"""A broker that a test can break: the real broker, with faults in its network, disk and requests.

`python -m minibroker.testing.node` starts it, and `testing.kit` gives it orders. The faults wrap
the broker's `System`; the broker has no code for them, and `minibroker start` cannot make them.
docs/testing-orders.md lists the orders, for tests in other languages.
"""

"""A broker that a test can break: the real one, with a network, a disk and requests that fail.

`python -m minibroker.testing.node` starts it, and `testing.kit` gives it orders. The faults wrap
the broker's `System`; the broker itself knows nothing of them. `minibroker start` cannot make them.
docs/testing-orders.md has the orders, for tests in other languages.
"""

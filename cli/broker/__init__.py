"""Commands about one broker: start it, check its health, show its settings, unregister it."""

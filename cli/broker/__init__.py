"""Commands about one broker: start it, ask it how it is, forget it."""

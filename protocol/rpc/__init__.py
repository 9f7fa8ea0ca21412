"""Our own wire: msgpack headers with record bytes beside them (docs/wire.md)."""

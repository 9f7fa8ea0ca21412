"""Kafka's wire: what unmodified Kafka clients send and expect (docs/kafka.md)."""

"""Kafka's messages to those that both wires share, and back: a file a subject.

Nothing is decided here: a request becomes the message that asks for the same, and the handler's
answer the message that says the same. Kafka groups partitions by topic, ours is one list.
What Kafka has and this broker does not stands in an answer as its public schemas say for "none".
"""

"""Convert Kafka's messages to the messages that both wires share, and back: one file per subject.

Adapters decide nothing: a request becomes the equivalent shared message, and the handler's answer
the equivalent Kafka message. Kafka groups partitions by topic; the shared messages have one list.
Answer fields that this broker does not support have the value for "none" of Kafka's schemas.
"""

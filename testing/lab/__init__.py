"""The lab: short scenarios of replication, played step by step on virtual time (docs/lab.md)."""

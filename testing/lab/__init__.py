"""The lab: short stories of replication, told step by step on virtual time (docs/lab.md)."""

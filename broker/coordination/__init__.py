"""What the coordinators of groups and of transactions share: each keeps what it coordinates in the
partitions of a topic of its own, and serves the partitions that its broker leads."""

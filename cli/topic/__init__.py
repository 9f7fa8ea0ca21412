"""Commands about topics, their partitions, replicas and leaders."""

"""Commands that measure a cluster."""

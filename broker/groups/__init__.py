"""Consumer groups: who is in one, who reads what, and how far they are."""

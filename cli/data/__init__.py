"""Commands that write and read records: produce and consume."""

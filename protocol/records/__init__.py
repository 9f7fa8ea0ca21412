"""Record batches, format version 2: the one form of records on disk and on every wire."""

"""Commands that read the files of a log."""

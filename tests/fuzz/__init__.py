"""Feeds hostile bytes to everything that reads foreign ones: `python -m tests.fuzz`."""

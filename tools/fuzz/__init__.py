"""Feeds hostile bytes to everything that reads foreign ones: `python -m tools.fuzz --help`."""

"""Feeds hostile bytes to everything that reads foreign ones: `python -m edgeveil_lab.fuzz`."""

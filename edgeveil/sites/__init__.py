"""Site files: how one process connects, where it stores, what bounds it keeps. One role a file."""

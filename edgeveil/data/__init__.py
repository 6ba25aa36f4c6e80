"""Data sources, partitions, and the split of a device's records."""

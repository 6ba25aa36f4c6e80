"""Shared files and browser rules of the pages of cloud, proxy, device and a run's report."""

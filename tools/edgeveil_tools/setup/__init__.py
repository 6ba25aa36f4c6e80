"""Preparation: check of this machine, a first job, and shell completion."""

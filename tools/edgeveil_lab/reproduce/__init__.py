"""Experiments of the texts, a YAML file for each figure or table, and the runner of all."""

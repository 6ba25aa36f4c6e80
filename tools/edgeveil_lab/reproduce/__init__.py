"""Experiments of papers, one YAML file per figure or table, and their runner."""

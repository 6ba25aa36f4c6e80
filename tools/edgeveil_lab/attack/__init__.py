"""Attacks on recorded jobs: membership inference and record reconstruction."""

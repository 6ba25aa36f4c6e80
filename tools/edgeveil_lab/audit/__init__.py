"""Attacks on every printed guarantee: by samples, by exact arithmetic and by timing."""

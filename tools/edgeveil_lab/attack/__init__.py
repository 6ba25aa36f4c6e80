"""Attacks on what a run released: whose record took part, and what it looked like."""

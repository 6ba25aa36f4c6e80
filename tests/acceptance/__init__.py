"""Acceptance suite of a restructuring: results that must be the same before and after."""

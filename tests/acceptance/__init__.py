"""The acceptance suite of a restructuring: what must come out the same before and after it."""

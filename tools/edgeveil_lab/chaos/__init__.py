"""`edgeveil chaos`: a real site under faults from a seed, and whether it kept its word."""

"""A real site under faults drawn from a seed, after which the parties' data are compared."""

"""A real site under faults drawn from a seed: what the parties hold afterwards is compared."""

"""Before the first run: what this machine has, and a job to begin with."""

"""Everything a job file selects by name: one folder per table, one file per name or family."""

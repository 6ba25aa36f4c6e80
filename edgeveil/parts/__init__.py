"""What a job names: one table a folder, one name a file."""

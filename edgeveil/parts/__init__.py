"""What a job names, a table a folder and a name a file; here what these have in common."""

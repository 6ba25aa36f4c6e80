"""HTML reports: the page of a run, and a comparison of runs."""

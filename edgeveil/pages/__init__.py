"""What the pages of cloud, proxy and device have in common, and a run's report with them: files
that a browser takes as they are, and the rules under which it does."""

"""Accuracies of several jobs over several seeds, as one table."""

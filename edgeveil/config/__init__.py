"""Site and job files: frozen models of their blocks, with all problems reported at once."""

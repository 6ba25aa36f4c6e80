"""Site and job files: frozen models of their blocks, with every problem named at once."""

"""YAML files -> frozen models, with every problem of a file named at once."""

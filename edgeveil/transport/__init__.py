"""Runs the machines' effects: links to brokers, the runtime around a machine, memory in tests."""

"""Execution of the machines' effects: broker links, HTTP, the runtime, and memory for tests."""

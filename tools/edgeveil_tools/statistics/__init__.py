"""Questions to a fleet, their answers for people and programs, and schemas from answers."""

"""Sans-IO protocol: messages, codec and one state machine per role; no I/O, clock or randomness."""

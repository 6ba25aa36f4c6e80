"""`edgeveil loadtest`: thousands of simulated devices over real brokers."""

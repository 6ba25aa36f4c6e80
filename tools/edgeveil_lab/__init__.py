"""The laboratory: load tests, chaos, audits, attacks, reproductions, benches."""

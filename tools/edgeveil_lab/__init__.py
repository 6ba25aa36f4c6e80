"""The laboratory: load tests, audits, attacks, reproductions."""

"""Trust in parties' keys: an offline root and its signed delegations."""

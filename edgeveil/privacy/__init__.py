"""Mechanisms, the events that price them, the accountant, the ledger."""

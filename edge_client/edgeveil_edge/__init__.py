"""A device: consent, records, training and inference, the ledger, the outbox."""

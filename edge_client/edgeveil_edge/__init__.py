"""Edge client: consent, records, training and inference, ledger, outbox."""

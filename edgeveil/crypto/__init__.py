"""Keys, signatures, sealing, chunks, stanzas and commitments; no cipher of our own."""

"""Keys, signatures, sealing, streams, stanzas and commitments; no cipher of our own."""

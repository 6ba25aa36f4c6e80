"""Keys, signatures, sealing, chunks, stanzas and commitments from standard ciphers."""

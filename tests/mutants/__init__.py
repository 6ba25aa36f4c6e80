"""Small flaws where privacy is decided, each planted alone and found by a test."""

"""Small flaws in privacy-critical code, each planted alone and found by a test."""

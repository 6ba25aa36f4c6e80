"""Whom a party believes: an offline root, and what it delegates by signed metadata."""

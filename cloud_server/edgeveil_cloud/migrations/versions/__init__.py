"""Schema revisions, one per file; a released revision never changes."""

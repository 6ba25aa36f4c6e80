"""What a run came to, as one page."""

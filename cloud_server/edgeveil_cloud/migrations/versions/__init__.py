"""One file a revision, never changed once it was in a release."""

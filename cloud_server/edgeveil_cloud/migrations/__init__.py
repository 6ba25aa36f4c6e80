"""The schemas of the cloud's store, one after the other, as Alembic revisions."""

"""Alembic's entry point: runs revisions on the caller's connection and transaction."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
context.run_migrations()

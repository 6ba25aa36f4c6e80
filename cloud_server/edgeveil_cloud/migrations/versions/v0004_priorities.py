"""Job priorities; older programs refuse this store."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the column, with `normal` for existing jobs."""
    priority = sa.Column("priority", sa.String(8), nullable=False, server_default="normal")
    op.add_column("jobs", priority)
    op.execute("UPDATE info SET version = 5")

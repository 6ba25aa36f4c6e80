"""Staged rollouts and device reports; older programs refuse this store."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "rollouts",
        sa.Column("job", sa.String(96), sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("data_set", sa.String(64), nullable=False),
        sa.Column("stage", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("canary", sa.LargeBinary, nullable=False),
        sa.Column("started_at", sa.Float, nullable=False),
        sa.Column("expires_s", sa.Float, nullable=False),
    )
    op.create_table(
        "release_broadcasts",
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("job", sa.String(96), sa.ForeignKey("jobs.id"), nullable=False),
        sa.Column("stage", sa.String(16), nullable=False),
        sa.Column("selected", sa.Integer, nullable=False),
        sa.Column("secret", sa.LargeBinary, nullable=False),
        sa.Column("sent_at", sa.Float, nullable=False),
        sa.Column("held", sa.Boolean, nullable=False),
    )
    op.create_table(
        "release_reports",
        sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("digest", sa.LargeBinary, primary_key=True),
        sa.Column("job", sa.String(96), sa.ForeignKey("jobs.id"), nullable=False),
        sa.Column("stage", sa.String(16), nullable=False),
        sa.Column("outcome", sa.String(32), nullable=False),
    )
    op.create_index("ix_release_broadcasts_job", "release_broadcasts", ["job"])
    op.create_index("ix_release_reports_job", "release_reports", ["job"])
    op.execute("UPDATE info SET version = 3")

"""Cells of devices, rosters, round keys and releases; older programs refuse this store."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_OF_ROUNDS = {"round_keys": "secret", "openings": "digest"}


def upgrade() -> None:
    """Add the columns; existing rows belong to the cell without a name."""
    for table in ("enrolled_keys", "roster"):
        op.add_column(table, sa.Column("cell", sa.String(32), nullable=False, server_default=""))
    for table, value in _OF_ROUNDS.items():
        op.rename_table(table, f"{table}_before")
        op.create_table(
            table,
            sa.Column("job", sa.String(96), sa.ForeignKey("jobs.id"), primary_key=True),
            sa.Column("exchange", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("cell", sa.String(32), primary_key=True),
            sa.Column(value, sa.LargeBinary, nullable=False),
        )
        names = ("job", "exchange", "attempt", value)
        before = sa.table(f"{table}_before", *map(sa.column, names))
        after = sa.table(table, *map(sa.column, (*names, "cell")))
        rows = sa.select(*(before.c[name] for name in names), sa.literal(""))
        op.execute(after.insert().from_select([*names, "cell"], rows))
        op.drop_table(f"{table}_before")
    cells = sa.Column("cells", sa.JSON, nullable=False, server_default="[]")
    op.add_column("release_broadcasts", cells)
    op.execute("UPDATE release_broadcasts SET cells = '[\"\"]' WHERE held")
    op.execute("UPDATE info SET version = 6")

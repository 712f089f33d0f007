"""Delivery: a fencing number per lease, and the head of each answer.

Revision ID: 0002
Revises: 0001
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # One sequence for all: what grows over the whole fleet grows for each schedule. Both columns are nullable without a
    # default, so that the tables are not rewritten and the previous version's processes go on.
    op.execute("CREATE SEQUENCE fleet_fence AS bigint")
    op.execute("ALTER TABLE executions ADD COLUMN fence bigint")
    op.execute("ALTER TABLE attempts ADD COLUMN response jsonb")


def downgrade() -> None:
    op.execute("ALTER TABLE attempts DROP COLUMN response")
    op.execute("ALTER TABLE executions DROP COLUMN fence")
    op.execute("DROP SEQUENCE fleet_fence")

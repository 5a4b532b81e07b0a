"""Adds the port of the next start and the probe to workspaces."""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Run the script."""
    op.get_bind().exec_driver_sql(Path(__file__).with_suffix(".sql").read_text("utf-8"))

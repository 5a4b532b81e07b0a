"""Adds what is known of programs that end by themselves, of errors and of operations under way."""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Run the script."""
    op.get_bind().exec_driver_sql(Path(__file__).with_suffix(".sql").read_text("utf-8"))

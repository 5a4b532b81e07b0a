"""Alembic's entry: runs the missing steps on the connection and in the transaction of `lapse.db.postgres.migration`."""

from __future__ import annotations

from alembic import context

from lapse.db.postgres.migrations import VERSION_TABLE

context.configure(connection=context.config.attributes["connection"], version_table=VERSION_TABLE)
context.run_migrations()

"""The tables on PostgreSQL: one numbered step after the other, in plain SQL, each applied once and recorded.

`REVISIONS` names them in order, so that the check whether a database fits needs no alembic: that is
imported where tables are made, by `lapse.db.postgres.migration`, and nowhere else.
"""

from __future__ import annotations

from typing import Final

VERSION_TABLE: Final = "lapse_schema"
"""Not alembic's usual name: the database may be shared with another program that uses alembic."""
REVISIONS: Final = ("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009")
